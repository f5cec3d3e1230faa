"""A map of the voice in a stream: the voiced stretches of audio that may still be decoded."""

from __future__ import annotations

from collections import deque

__all__ = ["VoiceMap"]


class VoiceMap:
    """The voiced stretches of a stream, in order, on the sample clock."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[int, int]] = (
            deque()
        )  # first sample, and the one after the last

    def add(self, start: int, end: int) -> None:
        """Note that samples ``start``..``end`` are voiced; none before ``start`` may be added later."""
        if self._stretches and self._stretches[-1][1] >= start:
            start, _ = self._stretches.pop()
        self._stretches.append((start, end))

    def forget(self, before: int) -> None:
        """Drop the stretches that end at sample ``before`` or earlier."""
        while self._stretches and self._stretches[0][1] <= before:
            self._stretches.popleft()

    def count(self, start: int, end: int) -> int:
        """Return the number of voiced samples in ``start``..``end``."""
        return sum(max(0, min(last, end) - max(first, start)) for first, last in self._stretches)

    def find_onset(self, sample: int) -> int | None:
        """Return the first voiced sample from ``sample`` on; None where there is none."""
        return next((max(first, sample) for first, last in self._stretches if last > sample), None)
