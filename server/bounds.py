"""What the daemon's options may be: told at the start, before a thread, a file or a stream meets them."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..model.threads import MOST_THREADS
from .errors import ConfigError
from .wire import MAX_PROMPT_CHARS

if TYPE_CHECKING:
    from .config import ServerConfig

__all__ = ["MOST_ENGINES", "MOST_INGRESS", "check_bounds", "flag_of"]

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
    return "--" + name.replace("_", "-")


def check_bounds(config: ServerConfig) -> None:
    """Raise ConfigError for the first option whose value cannot be used, whatever the others are."""
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
    """Scheme, host and at most a port: all that a browser sends (RFC 6454, section 6.2)."""
    try:
        parts = urlsplit(text)
        known = parts.port is None or parts.port > 0
    except ValueError:
        return False
    bare = not (parts.query or parts.fragment or parts.username) and parts.path in ("", "/")
    return bool(parts.scheme and parts.hostname and known and bare) and not any(
        mark.isspace() for mark in text
    )
