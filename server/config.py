"""The daemon's options: one typed configuration from flags, above the environment, above a TOML file.

Every value is checked here, before a thread, a file or a stream meets it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import urlsplit

from ..model.cpu.runtime import MOST_THREADS
from ..streamer.config import DetectorName, PolicyName, StreamConfig
from .errors import ConfigError
from .flags import FlagParser
from .protocol.messages import DEFAULT_PORT, MAX_PROMPT_CHARS, Start

__all__ = [
    "MOST_ENGINES",
    "MOST_INGRESS",
    "PREFIX",
    "ServerConfig",
    "Settings",
    "check_bounds",
    "flag_of",
    "read_settings",
    "to_toml",
]

MOST_INGRESS = 64
MOST_ENGINES = 64

_WITHIN: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "threads": (0, MOST_THREADS),  # where OpenMP cannot make them it crashes
    "ingress": (0, MOST_INGRESS),
    "engines": (0, MOST_ENGINES),
    "max_load": (0, 1),
    "endpoint_silence": (0.1, 10),  # as on the wire
}
_AT_LEAST = {
    "max_streams": 1,
    "max_delay": 0,
    "drain_seconds": 0,
    "resume_seconds": 0,
    "retain_seconds": 0,
    "retain_sessions": 0,
}
_ABOVE_NOTHING = ("idle_timeout", "handshake_timeout", "journal_limit", "update_interval")
_NOT_EMPTY = ("model", "journal", "api_keys", "tls_cert", "tls_key")


def flag_of(name: str) -> str:
    """Return the flag of an option: ``--max-streams`` for ``max_streams``."""
    return "--" + name.replace("_", "-")


def check_bounds(config: ServerConfig) -> None:
    """Raise ConfigError for the first option whose value cannot be used by itself."""
    for option in dataclasses.fields(config):
        value = getattr(config, option.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{flag_of(option.name)} must be a finite number, not {value}")
    for name, (low, high) in _WITHIN.items():
        if not low <= getattr(config, name) <= high:
            raise ConfigError(
                f"{flag_of(name)} must be from {low} to {high}, not {getattr(config, name)}"
            )
    for name, least in _AT_LEAST.items():
        if getattr(config, name) < least:
            raise ConfigError(f"{flag_of(name)} must be {least} or more")
    for name in _ABOVE_NOTHING:
        if not getattr(config, name) > 0:
            unit = "MiB" if name == "journal_limit" else "seconds"
            raise ConfigError(f"{flag_of(name)} must be above 0 {unit}")
    for name in _NOT_EMPTY:
        if getattr(config, name) == "":
            raise ConfigError(f"{flag_of(name)} is empty; give a name, or leave it out")
    _check_hotwords(config.hotwords)
    _check_origins(config.allowed_origins)
    for name in ("ingress", "engines"):
        if getattr(config, name) and sys.platform == "win32":
            raise ConfigError(f"{flag_of(name)} does not work on Windows; leave it out")


def _check_hotwords(hotwords: str | None) -> None:
    if len(hotwords or "") > MAX_PROMPT_CHARS:
        raise ConfigError(
            f"--hotwords may have {MAX_PROMPT_CHARS} characters, not {len(hotwords or '')}; "
            "leave the less important ones out"
        )


def _check_origins(origins: str) -> None:
    for origin in (part.strip() for part in origins.split(",")):
        if origin not in ("", "*", "null") and not _is_origin(origin):
            raise ConfigError(
                f"--allowed-origins has {origin!r}; write each like https://example.org or "
                "http://host:8080, with commas between, or * for all"
            )


def _is_origin(text: str) -> bool:
    """Return whether ``text`` is a scheme, a host and at most a port: all that a browser sends (RFC 6454, 6.2)."""
    try:
        parts = urlsplit(text)
        known = parts.port is None or parts.port > 0
    except ValueError:
        return False
    bare = not (parts.query or parts.fragment or parts.username) and parts.path in ("", "/")
    return bool(parts.scheme and parts.hostname and known and bare) and not any(
        mark.isspace() for mark in text
    )


def _option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """All options of the daemon, each with its help.

    Raises:
        ConfigError: a value is out of range, or two options exclude each other.
    """

    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(DEFAULT_PORT, "port to listen on; 0 picks a free one")
    model: str = _option("tiny.en", "model name or path")
    device: str = _option("auto", "where the model runs: auto, cpu or cuda")
    compute_type: str = _option(
        "auto",
        "precision of the weights: auto (the fastest here), float32, float16, bfloat16 or int8",
    )
    threads: int = _option(0, "CPU threads of the model, 512 at most; 0 takes all")
    ingress: int = _option(
        0, "processes that hold connections and streams, beside the model's own; 0: one does it all"
    )
    engines: int = _option(
        0,
        "processes with a model each, that share the decoding: for GPUs that one process cannot fill; "
        "0: the daemon's own process decodes",
    )
    language: str | None = _option(None, "language of streams that name none; default: detect")
    languages: str | None = _option(
        None, "languages that may be detected, such as en,de; default: any"
    )
    hotwords: str | None = _option(None, "words to expect in streams that name none; default: none")
    policy: PolicyName = _option(
        "local-agreement", "which words are committed", get_args(PolicyName)
    )
    detector: DetectorName = _option(
        "webrtc", "what tells speech from noise; silero is an extra", get_args(DetectorName)
    )
    max_streams: int = _option(64, "streams served at once; more are refused")
    max_load: float = _option(
        0.9,
        "share of the engine's time, above which streams are taken one at a time and as --max-delay "
        "allows; 0: none is refused for load",
    )
    max_delay: float = _option(
        4.0,
        "seconds in which 19 of 20 words shall be committed: a stream that would make them later is "
        "refused; 0: whatever goes beyond --max-load is",
    )
    api_keys: str | None = _option(
        None,
        "file of keys, one NAME:KEY a line; default: WHISPER_STREAM_API_KEYS, else none is needed",
    )
    allowed_origins: str = _option(
        "", "web pages that may connect besides our own: origins with commas between, or *"
    )
    tls_cert: str | None = _option(None, "certificate chain (PEM): serve wss and https")
    tls_key: str | None = _option(None, "private key of --tls-cert (PEM)")
    self_signed: bool = _option(
        False, "serve wss and https with a certificate of its own, kept in the cache"
    )
    handshake_timeout: float = _option(10.0, "seconds a connection may take for its request")
    idle_timeout: float = _option(300.0, "seconds a client may neither send nor read")
    drain_seconds: float = _option(10.0, "seconds that open streams get to finish on a stop")
    resume_seconds: float = _option(60.0, "seconds a stream waits for its client to reconnect")
    journal: str | None = _option(
        None, "file that keeps open streams, so that they survive a restart; default: none"
    )
    journal_limit: float = _option(
        512.0, "MiB that one stream may take in the journal; a longer one goes on without it"
    )
    retain_seconds: float = _option(600.0, "seconds that a finished transcript can be fetched")
    retain_sessions: int = _option(1000, "finished transcripts kept at most")
    endpoint_silence: float = _option(0.6, "seconds of silence that end an utterance, 0.1 to 10")
    update_interval: float = _option(0.4, "least seconds of new audio between two updates")
    debug: bool = _option(
        False, "show what streams say on the page /debug, on this machine or to the key named debug"
    )
    log_level: str = _option(
        "info", "least severe level logged", ("debug", "info", "warning", "error")
    )
    announce: bool = _option(False, "print one JSON line with the address on stdout once ready")
    exit_with_stdin: bool = _option(False, "stop when standard input ends")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("--tls-key needs --tls-cert")
        if self.self_signed and self.tls_cert is not None:
            raise ConfigError("--self-signed and --tls-cert exclude each other")
        if self.language is not None and self.languages is not None:
            if self.language not in self.allowed_languages:
                raise ConfigError(
                    f"--language {self.language} is not among --languages {self.languages}; add it there, "
                    "or leave one of the two out"
                )
        try:
            StreamConfig(policy=self.policy, languages=self.allowed_languages)
        except ValueError as error:  # it begins with the option's name
            raise ConfigError(f"--{error}") from error

    @property
    def allowed_languages(self) -> tuple[str, ...]:
        """Codes of the languages that may be detected; empty: any."""
        return tuple(code.strip() for code in (self.languages or "").split(",") if code.strip())

    @property
    def tls(self) -> bool:
        """True if connections are encrypted."""
        return self.self_signed or self.tls_cert is not None

    def stream_config(self, start: Start, *, english_only: bool) -> StreamConfig:
        """Return the options of the stream that ``start`` asks for.

        Args:
            start: the client's first message.
            english_only: the model knows no other language.
        """
        language = start.language or self.language
        return StreamConfig(
            language="en" if english_only else language,
            task=start.task,
            prompt=start.prompt,
            endpoint_silence=(
                self.endpoint_silence if start.endpoint_silence is None else start.endpoint_silence
            ),
            update_interval=self.update_interval,
            languages=start.languages or self.allowed_languages,
            hotwords=start.hotwords or self.hotwords or "",
            policy=self.policy,
            detector=self.detector,
        )


PREFIX = "WHISPER_STREAM_"  # of environment variables: WHISPER_STREAM_MAX_STREAMS=8
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# Said anew at each start, never kept in a file.
_FLAGS_ONLY = ("announce", "exit_with_stdin")
# Variables that are no options: the file's name, a client's key, where weights come from; and those that
# Kubernetes and Docker set for a service that is called whisper-stream.
_OTHERS = ("CONFIG", "KEY", "DOWNLOAD_URL")
_OF_SERVICES = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*")


class Settings(NamedTuple):
    """The options, and whether they are only to be printed."""

    config: ServerConfig
    print_only: bool


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the options that flags, environment and the file of ``--config`` ask for.

    Args:
        argv: the flags, without the program's name.
        environment: variables such as ``WHISPER_STREAM_MAX_STREAMS``.

    Raises:
        ConfigError: one of them cannot be used; the text names it.
    """
    flags = vars(_parser().parse_args(argv))
    path = flags.pop("config", environment.get(PREFIX + "CONFIG"))
    print_only = flags.pop("print_config", False)
    merged = {**({} if path is None else _file(path)), **_variables(environment), **flags}
    return Settings(ServerConfig(**merged), print_only)


def to_toml(config: ServerConfig) -> str:
    """Return the text of a file for ``--config``, with every option and its help."""
    lines: list[str] = []
    for option in dataclasses.fields(config):
        if option.name in _FLAGS_ONLY:
            continue
        value = getattr(config, option.name)
        line = f"{option.name} = {json.dumps(value, ensure_ascii=False)}"
        lines += [
            f"# {option.metadata['help']}",
            f"# {option.name} =" if value is None else line,
            "",
        ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        failure=ConfigError,
        prog="whisper-stream serve",
        description="Serve live transcription over websockets.",
        epilog=f"Each option can also be an environment variable, such as {PREFIX}MAX_STREAMS, or a "
        "line of the file that --config names. Flags go before variables, and variables before the file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with options")
    parser.add_argument("--print-config", action="store_true", help="print all options as TOML")
    hints = get_type_hints(ServerConfig)
    for option in dataclasses.fields(ServerConfig):
        text = option.metadata["help"]
        kind = _kind(hints[option.name])
        if kind is bool:
            parser.add_argument(flag_of(option.name), action="store_true", help=text)
            continue
        shown = "" if option.default in (None, "") else f" (default: {option.default})"
        parser.add_argument(
            flag_of(option.name),
            type=kind,
            choices=option.metadata["choices"] or None,
            metavar=None if option.metadata["choices"] else option.name.upper(),
            help=text + shown,
        )
    return parser


def _kind(hint: Any) -> type:
    """Return the type of one value of an option: ``str`` for ``str | None``, and for a Literal."""
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    kind: type = str if get_origin(hint) is Literal else hint
    return kind


def _file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is no text in UTF-8; name a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None
    hints = get_type_hints(ServerConfig)
    for name, value in values.items():
        if name not in hints or name in _FLAGS_ONLY:
            hint = _nearest(name, hints) or "see --print-config"
            raise ConfigError(f"--config {path}: there is no option {name!r}; {hint}")
        kind = _kind(hints[name])
        right = isinstance(value, (int, float) if kind is float else kind)
        if not right or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"--config {path}: {name} must be {_type_name(kind)}, not {value!r}")
        _check_choice(name, value, f"--config {path}")
    try:
        return {name: _kind(hints[name])(value) for name, value in values.items()}
    except OverflowError:  # a whole number of hundreds of digits
        raise ConfigError(f"--config {path}: a number is too large to be used") from None


def _variables(environment: Mapping[str, str]) -> dict[str, Any]:
    hints = get_type_hints(ServerConfig)
    values: dict[str, Any] = {}
    _check_variables(environment, hints)
    for option in dataclasses.fields(ServerConfig):
        variable = PREFIX + option.name.upper()
        # The variable WHISPER_STREAM_API_KEYS holds the keys themselves, not a file's name.
        if variable not in environment or option.name in (*_FLAGS_ONLY, "api_keys"):
            continue
        text, kind = environment[variable], _kind(hints[option.name])
        try:
            values[option.name] = _WORDS[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{variable} must be {_type_name(kind)}, not {text!r}") from None
        _check_choice(option.name, values[option.name], variable)
    return values


def _check_variables(environment: Mapping[str, str], options: Iterable[str]) -> None:
    known = [PREFIX + name.upper() for name in options if name not in _FLAGS_ONLY]
    others = [PREFIX + name for name in _OTHERS]
    for name in environment:
        rest = name.removeprefix(PREFIX)
        if rest == name or name in (*known, *others) or _OF_SERVICES.fullmatch(rest):
            continue
        near = _nearest(rest, [each.removeprefix(PREFIX) for each in (*known, *others)])
        named = near.replace("mean ", f"mean {PREFIX}")
        hint = named or "unset it, or see --print-config for the options"
        raise ConfigError(f"there is no option for the variable {name}; {hint}")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean max_streams?``, or an empty text if no known name is near."""
    tidy = name.replace("-", "_")
    options = [each for each in known if each not in _FLAGS_ONLY]
    near = difflib.get_close_matches(tidy, options, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else ""


def _check_choice(name: str, value: object, where: str) -> None:
    choices = next(o for o in dataclasses.fields(ServerConfig) if o.name == name).metadata[
        "choices"
    ]
    if choices and value not in choices:
        raise ConfigError(f"{where}: {name} must be one of {', '.join(choices)}, not {value!r}")


def _type_name(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text")
