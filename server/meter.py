"""What one connection uses, against the limits of its key."""

from __future__ import annotations

from .access import Account, Gate
from .metrics import Metrics

__all__ = ["Meter"]


class Meter:
    """Counts a connection's audio."""

    def __init__(self, account: Account | None, gate: Gate, metrics: Metrics) -> None:
        self._account = account
        self._gate = gate
        self.metrics = metrics

    def count(self, size: int, seconds: float) -> str | None:
        """Count bytes and seconds of audio; return a sentence if the key may have no more."""
        self.metrics.audio_seconds += seconds
        if self._account is None:
            return None
        limit = self._account.use(self._gate.today(), size, seconds)
        return None if limit is None else f"this key may send {limit}; try again tomorrow"
