"""When a client is told how far its words are behind."""

from __future__ import annotations

from .events import Event, Lag

__all__ = ["LagTeller"]

_SECONDS = 2.0  # behind the live edge, from which on the client is told
_STEP_SECONDS = 1.0  # and told again when it has changed by as much


class LagTeller:
    def __init__(self) -> None:
        self._told = 0.0

    def tell(self, behind: float, interval: float) -> list[Event]:
        """``behind``: seconds of audio after what was decoded last; ``interval``: between updates."""
        if behind < _SECONDS:
            behind = 0.0
        if abs(behind - self._told) < _STEP_SECONDS:
            return []
        self._told = behind
        return [Lag(behind_seconds=behind, interval_seconds=interval)]
