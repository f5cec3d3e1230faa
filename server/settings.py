"""One typed configuration from three sources: flags, above the environment, above a TOML file."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from .config import ServerConfig, flag_of
from .errors import SERVE_HELP, ConfigError

__all__ = ["PREFIX", "Settings", "parse_flags", "read_settings", "to_toml"]

PREFIX = "WHISPER_STREAM_"  # of environment variables: WHISPER_STREAM_MAX_STREAMS=8
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# Said anew at each start, never kept in a file.
_FLAGS_ONLY = ("announce", "exit_with_stdin")
# Variables that are no options: the file's name, a client's key, where weights come from; and those that
# Kubernetes and Docker set for a service that is called whisper-stream.
_OTHERS = ("CONFIG", "KEY", "DOWNLOAD_URL")
_OF_SERVICES = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*")


class Settings(NamedTuple):
    """``print_only``: show the configuration, and do not serve."""

    config: ServerConfig
    print_only: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving: one clear line is enough."""
        raise ConfigError(f"{message.rstrip('.')}; {SERVE_HELP}")


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return what flags, environment and the file of ``--config`` ask for; raises ConfigError."""
    flags = vars(_parser().parse_args(argv))
    path = flags.pop("config", environment.get(PREFIX + "CONFIG"))
    print_only = flags.pop("print_config", False)
    merged = {**({} if path is None else _file(path)), **_variables(environment), **flags}
    return Settings(ServerConfig(**merged), print_only)


def parse_flags(argv: Sequence[str]) -> ServerConfig:
    """Return the options that the flags alone ask for; raises ConfigError."""
    return read_settings(argv, {}).config


def to_toml(config: ServerConfig) -> str:
    """Return a file for ``--config`` with every option, its help above it."""
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
    parser = _Parser(
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
    """The type of one value: that of ``str | None`` is ``str``, and so is that of a Literal."""
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
            raise ConfigError(f"--config {path}: {name} must be {_named(kind)}, not {value!r}")
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
            raise ConfigError(f"{variable} must be {_named(kind)}, not {text!r}") from None
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
    """``did you mean max_streams?``, or nothing where none is near."""
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


def _named(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text")
