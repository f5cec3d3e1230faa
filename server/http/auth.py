"""API keys with their limits, and the origins of web pages that may connect."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..metrics import Metrics

__all__ = [
    "Account",
    "Authenticator",
    "KEY_SUBPROTOCOL",
    "KeyUsage",
    "LocalKeyUsage",
    "Meter",
    "is_loopback",
    "key_of",
    "parse_keys",
    "read_keys",
]

KEY_SUBPROTOCOL = "whisper-stream.key."  # followed by the key, for browsers
_LEAST_KEY_CHARS = 16
_LIMITS = ("streams", "minutes", "bytes", "expires")


class KeyUsage(Protocol):
    """Counts of one key: in this process, or in the whole daemon."""

    @property
    def streams(self) -> int:
        """Connections that are open."""

    def add_streams(self, change: int) -> None:
        """Count connections that were opened or, below zero, closed."""

    def add_audio(self, day: datetime.date, size: int, seconds: float) -> tuple[int, float]:
        """Count audio; return the bytes and the seconds of ``day``."""


class LocalKeyUsage:
    """Counts of one key in the only process of a daemon."""

    def __init__(self) -> None:
        self._streams = 0
        self._day: datetime.date | None = None
        self._bytes = 0
        self._seconds = 0.0

    @property
    def streams(self) -> int:
        """Connections that are open."""
        return self._streams

    def add_streams(self, change: int) -> None:
        """Count connections that were opened or, below zero, closed."""
        self._streams += change

    def add_audio(self, day: datetime.date, size: int, seconds: float) -> tuple[int, float]:
        """Count audio; return the bytes and the seconds of ``day``."""
        if day != self._day:
            self._day, self._bytes, self._seconds = day, 0, 0.0
        self._bytes += size
        self._seconds += seconds
        return self._bytes, self._seconds


@dataclass(slots=True, kw_only=True)
class Account:
    """One key, its limits, and what it has used. Seconds and bytes are those of a UTC day.

    Attributes:
        name: for logs and metrics; not secret.
        digest: SHA-256 of the key.
        expires: the last day on which the key is good.
        usage: counted where the daemon's topology says.
    """

    name: str
    digest: bytes
    most_streams: int | None = None
    most_seconds: float | None = None
    most_bytes: int | None = None
    expires: datetime.date | None = None
    usage: KeyUsage = field(default_factory=LocalKeyUsage)

    def count_audio(self, today: datetime.date, size: int, seconds: float) -> str | None:
        """Count bytes and seconds of audio; return the limit that is passed, in words; None: none is."""
        day_bytes, day_seconds = self.usage.add_audio(today, size, seconds)
        if self.most_seconds is not None and day_seconds > self.most_seconds:
            return f"{self.most_seconds / 60:g} minutes of audio a day"
        if self.most_bytes is not None and day_bytes > self.most_bytes:
            return f"{self.most_bytes} bytes of audio a day"
        return None


class Authenticator:
    """Decides which connections are let in, by key and by origin. Without keys, every client is.

    Args:
        accounts: of the keys.
        origins: web pages, as ``https://host:port``, that may connect; ``*``: all.
        local: the daemon listens on the loopback only, so that no other page has a reason to.
        today: returns the present UTC day.
    """

    def __init__(
        self,
        accounts: Iterable[Account],
        origins: Sequence[str],
        *,
        local: bool,
        today: Callable[[], datetime.date] = lambda: datetime.datetime.now(datetime.UTC).date(),
    ) -> None:
        self._accounts = list(accounts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._local = local
        self.today = today

    @property
    def needs_key(self) -> bool:
        """True if a key is needed."""
        return bool(self._accounts)

    def reload(self, accounts: Iterable[Account]) -> None:
        """Use other keys; streams that are open go on."""
        old = {account.digest: account for account in self._accounts}
        self._accounts = list(accounts)
        for account in self._accounts:
            if account.digest in old:
                account.usage = old[account.digest].usage

    def account(self, key: str | None) -> Account | None:
        """Return the account of a key that is good today. Every wrong one takes the same time."""
        digest = hashlib.sha256((key or "").encode("utf-8", "replace")).digest()
        found = None
        for account in self._accounts:
            if hmac.compare_digest(account.digest, digest):
                found = account
        if found is not None and found.expires is not None and found.expires < self.today():
            return None
        return found

    def find(self, digest: bytes) -> Account | None:
        """Return the account of a key by the SHA-256 of the key; None: it is unknown."""
        return next((each for each in self._accounts if each.digest == digest), None)

    def welcomes(self, origin: str | None, host: str) -> bool:
        """Return whether a page of ``origin`` may connect to the daemon that it addresses as ``host``.

        Programs send no origin. A page served by the daemon itself may always connect, but when only
        this machine is served it must also call us by a local name: else any page whose name was
        pointed to this machine would pass.
        """
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False  # no address at all
        same = parts.netloc.lower() == host.lower()
        local = is_loopback(parts.hostname or "")
        return (same and not self._local) or (same and local)


def key_of(
    headers: Mapping[str, str], query: Mapping[str, str], offered: Iterable[str]
) -> str | None:
    """Return the key that a request shows: in a header, a subprotocol, or the query; None: it shows none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    if "x-api-key" in headers:
        return headers["x-api-key"]
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL):
            return name.removeprefix(KEY_SUBPROTOCOL)
    return query.get("key")


def read_keys(path: str | None, environment: str | None) -> list[Account]:
    """Return the accounts of a file's lines, or of an environment variable's; raises ConfigError."""
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(f"--api-keys {path} cannot be read ({reason})") from None
        accounts = parse_keys(text.splitlines(), path)
        if not accounts:
            raise ConfigError(f"--api-keys {path} holds no key; nobody could connect")
        return accounts
    return parse_keys((environment or "").split(","), "WHISPER_STREAM_API_KEYS")


def parse_keys(lines: Iterable[str], source: str) -> list[Account]:
    """Return the accounts of lines ``NAME:KEY [streams=N] [minutes=N] [bytes=N] [expires=DATE]``.

    Empty lines and those that begin with # are passed over. Raises ConfigError; its text shows no key.
    """
    accounts: list[Account] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first, *limits = line.split()
        name, colon, key = first.partition(":")
        where = f"{source}, line {number}"
        if not (colon and name and len(key) >= _LEAST_KEY_CHARS):
            raise ConfigError(
                f"{where}: write NAME:KEY, with a key of {_LEAST_KEY_CHARS} characters or more"
            )
        account = Account(name=name, digest=hashlib.sha256(key.encode()).digest())
        for limit in limits:
            _set_limit(account, limit, where)
        if any(other.name == name for other in accounts):
            raise ConfigError(f"{where}: the name {name!r} is there twice")
        accounts.append(account)
    return accounts


def _set_limit(account: Account, limit: str, where: str) -> None:
    what, _, value = limit.partition("=")
    try:
        match what:
            case "streams":
                account.most_streams = int(value)
            case "minutes":
                account.most_seconds = float(value) * 60
            case "bytes":
                account.most_bytes = int(value)
            case "expires":
                account.expires = datetime.date.fromisoformat(value)
            case _:
                raise ValueError
    except ValueError:
        known = ", ".join(f"{name}=" for name in _LIMITS)
        raise ConfigError(
            f"{where}: {what!r} is not a limit that can be used; known: {known}"
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address or name of this machine that no other machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Meter:
    """Counts the audio of one connection, in the metrics and against the limits of its key."""

    def __init__(
        self, account: Account | None, authenticator: Authenticator, metrics: Metrics
    ) -> None:
        self._account = account
        self._authenticator = authenticator
        self.metrics = metrics

    def count(self, size: int, seconds: float) -> str | None:
        """Count bytes and seconds of audio; return a sentence if the key may have no more."""
        self.metrics.audio_seconds += seconds
        if self._account is None:
            return None
        limit = self._account.count_audio(self._authenticator.today(), size, seconds)
        return None if limit is None else f"this key may send {limit}; try again tomorrow"
