"""A stream's id and secrets: who may go on with it, and who may read along."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

__all__ = ["StreamIdentity", "hash_token", "token_matches"]


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """A stream's id, and the hash of the token with which its client proves that the stream is its own."""

    id: str
    token_hash: bytes

    def accepts(self, token: str) -> bool:
        """Return whether ``token`` is the stream's; takes the same time for every wrong one."""
        return token_matches(token, self.token_hash)

    @property
    def reader_key(self) -> str:
        """Lets others read along, and nothing else; the same after a restart."""
        return hmac.new(self.token_hash, b"watch", "sha256").hexdigest()[:32]

    def accepts_reader(self, key: str) -> bool:
        """Return whether ``key`` is the reader's key; takes the same time for every wrong one."""
        return hmac.compare_digest(key.encode(), self.reader_key.encode())

    @property
    def watch_path(self) -> str:
        """The path, with the reader's key, at which others may read along."""
        return f"/v1/sessions/{self.id}/watch?key={self.reader_key}"


def hash_token(token: str) -> bytes:
    """Return what is stored of a token: nobody who reads the journal can act for the client."""
    return hashlib.sha256(token.encode()).digest()


def token_matches(token: str, token_hash: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_token(token), token_hash)
