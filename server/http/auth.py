"""Who may open streams: API keys with their limits, and the web pages that browsers may come from.

What one connection uses, against the limits of its key.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..metrics import Metrics

__all__ = [
    "Account",
    "Authenticator",
    "KEY_SUBPROTOCOL",
    "Meter",
    "is_loopback",
    "key_of",
    "parse_keys",
    "read_keys",
]

KEY_SUBPROTOCOL = "whisper-stream.key."  # followed by the key, for browsers
_LEAST_KEY_CHARS = 16
_LIMITS = ("streams", "minutes", "bytes", "expires")


@dataclass(slots=True, kw_only=True)
class Account:
    """One key's limits and what it has used. Minutes and bytes are those of a UTC day."""

    name: str  # for logs and metrics; not secret
    digest: bytes  # SHA-256 of the key
    most_streams: int | None = None
    most_seconds: float | None = None
    most_bytes: int | None = None
    expires: datetime.date | None = None  # the last day on which it is good
    streams: int = 0
    _day: datetime.date | None = field(default=None)
    _seconds: float = 0.0
    _bytes: int = 0

    def use(self, today: datetime.date, size: int, seconds: float) -> str | None:
        """Count audio; return which limit is passed, if one is."""
        if today != self._day:
            self._day, self._seconds, self._bytes = today, 0.0, 0
        self._seconds += seconds
        self._bytes += size
        if self.most_seconds is not None and self._seconds > self.most_seconds:
            return f"{self.most_seconds / 60:g} minutes of audio a day"
        if self.most_bytes is not None and self._bytes > self.most_bytes:
            return f"{self.most_bytes} bytes of audio a day"
        return None

    def inherit(self, old: Account) -> None:
        """Take over what the same key has used before its limits were read anew."""
        self.streams = old.streams
        self._day, self._seconds, self._bytes = old._day, old._seconds, old._bytes


class Authenticator:
    """Decides on each connection. Without keys, everybody may come.

    Args:
        origins: web pages, as ``https://host:port``, that may connect; ``*``: all.
        local: the daemon listens on the loopback only, so that no other page has a reason to.
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
        """Whether a key is asked for."""
        return bool(self._accounts)

    def reload(self, accounts: Iterable[Account]) -> None:
        """Use other keys; streams that are open go on."""
        old = {account.digest: account for account in self._accounts}
        self._accounts = list(accounts)
        for account in self._accounts:
            if account.digest in old:
                account.inherit(old[account.digest])

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

    def known(self, digest: bytes) -> Account | None:
        """Return the account of a key, by the SHA-256 of the key."""
        return next((each for each in self._accounts if each.digest == digest), None)

    def welcomes(self, origin: str | None, host: str) -> bool:
        """Whether a page of ``origin`` may connect to the daemon it addressed as ``host``.

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
    """Return the key a request shows: header, subprotocol, or query."""
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
            f"{where}: {what!r} is no limit that can be used; known: {known}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine, and reachable from it alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Meter:
    """Counts a connection's audio."""

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
        limit = self._account.use(self._authenticator.today(), size, seconds)
        return None if limit is None else f"this key may send {limit}; try again tomorrow"
