"""The flags that several commands share, and the options they ask for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from ...model.cpu.runtime import MOST_THREADS
from ...server.flags import FlagParser
from ..errors import UsageError
from ..sdk.embed import DaemonOptions
from .flag_values import whole_between
from .main import PROGRAM

__all__ = [
    "KEY_VARIABLE",
    "add_daemon_flags",
    "add_model_flags",
    "add_server_flags",
    "command_parser",
    "daemon_options",
    "server_key",
]

KEY_VARIABLE = "WHISPER_STREAM_KEY"

_Add = Callable[..., Any]  # add_argument of a parser or a group


def command_parser(name: str, **options: Any) -> FlagParser:
    """Return the parser of ``whisper-stream NAME``; a mistake raises UsageError."""
    return FlagParser(failure=UsageError, prog=f"{PROGRAM} {name}".strip(), **options)


def add_model_flags(
    add: _Add, *, device_flag: str = "--device", model_type: Callable[[str], str] = str
) -> None:
    """Add the model, its device, its precision and its threads; each is None unless given.

    Args:
        add: the ``add_argument`` of a parser or of a group.
        device_flag: the name of the device's flag; its value is ``model_device``.
        model_type: checks the name of the model.
    """
    add("--model", type=model_type, metavar="NAME", help="its name or path (default: tiny.en)")
    add(
        device_flag,
        dest="model_device",
        metavar="NAME",
        help="where the model runs, such as cpu or cuda",
    )
    add("--compute-type", metavar="TYPE", help="the precision of its numbers, such as float32")
    add(
        "--threads",
        type=whole_between(0, MOST_THREADS),
        metavar="N",
        help="processor threads of the model (default: 0, all)",
    )


def add_server_flags(add: _Add) -> None:
    """Add the address and the key of a daemon that runs already."""
    add("--server", metavar="URL", help="use the daemon at ws://host:port, not an embedded one")
    add(
        "--key",
        metavar="KEY",
        help=f"of that daemon, where it wants one; better kept in {KEY_VARIABLE}: others can see flags",
    )


def add_daemon_flags(parser: argparse.ArgumentParser, *, device_flag: str = "--device") -> None:
    """Add a group of flags for the embedded daemon; ``daemon_options`` reads them."""
    add = parser.add_argument_group("options of the embedded daemon").add_argument
    add_model_flags(add, device_flag=device_flag)
    add("--policy", metavar="NAME", help="local-agreement, align-att or either: what is committed")


def daemon_options(parsed: argparse.Namespace, *, device_flag: str = "--device") -> DaemonOptions:
    """Return the options of the embedded daemon.

    Raises:
        UsageError: there is a flag of the embedded daemon beside ``--server``.
    """
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
    return DaemonOptions(
        model=parsed.model or "tiny.en",
        device=parsed.model_device,
        compute_type=parsed.compute_type,
        threads=parsed.threads,
        policy=parsed.policy,
    )


def server_key(parsed: argparse.Namespace) -> str | None:
    """Return the key for the daemon at ``--server``, from the flag or from the environment.

    Raises:
        UsageError: a key was given without a server.
    """
    if parsed.server is None:
        if parsed.key is not None:
            raise UsageError("--key is for a daemon that runs already; name it with --server")
        return None
    return parsed.key or os.environ.get(KEY_VARIABLE) or None
