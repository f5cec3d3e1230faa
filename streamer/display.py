"""Which words of the unstable tail are worth showing."""

from __future__ import annotations

from collections.abc import Sequence

from .jobs import DecodedWord

__all__ = ["TailDisplay"]


class TailDisplay:
    """Holds back the words at the very end of the audio, which the next update is likely to change.

    A word is shown once it ends ``margin`` seconds before the end of the audio. One that was shown
    and is still there stays, so that nothing flickers.
    """

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._shown: list[str] = []  # texts, after the committed words

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> tuple[DecodedWord, ...]:
        """The newest tail -> its words to show. ``audio_seconds``: length of the window decoded."""
        count = 0
        for index, word in enumerate(words):
            known = index < len(self._shown) and self._shown[index] == word.text
            if not known and word.end > audio_seconds - self._margin:
                break
            count = index + 1
        self._shown = [word.text for word in words[:count]]
        return tuple(words[:count])

    def committed(self, count: int) -> None:
        """The first ``count`` words of the hypothesis are committed now."""
        del self._shown[:count]

    def reset(self) -> None:
        self._shown.clear()
