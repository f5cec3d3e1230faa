"""The flags that several commands share, and what they ask for. Standard library only."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, NoReturn

from ..errors import UsageError

if TYPE_CHECKING:
    from .play import PlayOptions

__all__ = ["Parser", "add_shared_flags", "play_options", "thread_count"]

PROGRAM = "whisper-stream"
KEY_VARIABLE = "WHISPER_STREAM_KEY"
MOST_THREADS = 512  # as the daemon's --threads


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing usage and leaving: one clear line is enough."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('.')}; see `{self.prog} --help`")


def add_shared_flags(parser: argparse.ArgumentParser, *, device_flag: str = "--device") -> None:
    """Flags of the stream, of what is shown, and of the embedded daemon."""
    add = parser.add_argument
    add("--language", type=_language, metavar="CODE", help="such as en or de (default: detected)")
    add(
        "--task",
        choices=("transcribe", "translate"),
        default="transcribe",
        help="translate: into English (default: transcribe)",
    )
    add(
        "--languages",
        type=_languages,
        default=(),
        metavar="CODES",
        help="that may be detected, such as en,de (default: any)",
    )
    add("--prompt", default="", metavar="TEXT", help="context or vocabulary to expect")
    add("--hotwords", default="", metavar="TEXT", help="words to expect, such as names")
    add("--json", action="store_true", help="print every message of the server as a JSON line")
    add("--output", metavar="FILE", help="write the transcript as .srt, .vtt, .txt or .json")
    add("--timeline", metavar="FILE", help="write a page that shows when each word came, as .html")
    add("--no-color", dest="color", action="store_false", help="captions without colors")
    add("--server", metavar="URL", help="use the daemon at ws://host:port, not an embedded one")
    add(
        "--key",
        metavar="KEY",
        help=f"of that daemon, where it wants one; better kept in {KEY_VARIABLE}: others can see flags",
    )
    daemon = parser.add_argument_group("options of the embedded daemon")
    add = daemon.add_argument
    add("--model", metavar="NAME", help="a model's name or path (default: tiny.en)")
    add(
        device_flag,
        dest="model_device",
        metavar="NAME",
        help="where the model runs, such as cpu or cuda",
    )
    add("--compute-type", metavar="TYPE", help="the precision of its numbers, such as float32")
    add("--threads", type=thread_count, metavar="N", help="processor threads of the model")
    add("--policy", metavar="NAME", help="local-agreement, align-att or either: what is committed")


def play_options(parsed: argparse.Namespace, *, device_flag: str = "--device") -> PlayOptions:
    """What the shared flags ask for.

    Raises:
        UsageError: a flag of the embedded daemon, where there is none; a key without a server.
    """
    from ...server.protocol.messages import Start
    from ..sdk.embed import DaemonOptions
    from .play import PlayOptions

    if parsed.server is None and parsed.key is not None:
        raise UsageError("--key is for a daemon that runs already; name it with --server")
    if parsed.server is not None:
        for name, flag in (
            ("model", "--model"),
            ("model_device", device_flag),
            ("compute_type", "--compute-type"),
            ("threads", "--threads"),
            ("policy", "--policy"),
        ):
            if getattr(parsed, name) is not None:
                raise UsageError(f"{flag} is for an embedded daemon; leave it out with --server")
    return PlayOptions(
        start=Start(
            language=parsed.language,
            languages=parsed.languages,
            task=parsed.task,
            prompt=parsed.prompt,
            hotwords=parsed.hotwords,
        ),
        server=parsed.server,
        key=(parsed.key or os.environ.get(KEY_VARIABLE) or None) if parsed.server else None,
        daemon=DaemonOptions(
            model=parsed.model or "tiny.en",
            device=parsed.model_device,
            compute_type=parsed.compute_type,
            threads=parsed.threads,
            policy=parsed.policy,
        ),
        json=parsed.json,
        color=parsed.color,
    )


def _language(text: str) -> str:
    code = text.strip().lower()
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise argparse.ArgumentTypeError(f"{text!r} is no language code such as en or de")
    return code


def _languages(text: str) -> tuple[str, ...]:
    return tuple(_language(code) for code in text.split(",") if code.strip())


def thread_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_THREADS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_THREADS}")
    return int(text)
