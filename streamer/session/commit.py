"""When a client is told how far its words are behind.

Which words of the unstable tail are worth showing.

What is known of the open window's text: committed by agreement, and the tail that may still change.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import StreamConfig
from ..events import Commit, Event, Lag, Partial, Word
from ..jobs import DecodedWord
from .policies import make_policy
from .transcript import Transcript
from .window import Window

__all__ = ["LagReporter", "HypothesisTracker", "PartialFilter"]

_SECONDS = 2.0  # behind the live edge, from which on the client is told
_STEP_SECONDS = 1.0  # and told again when it has changed by as much


class LagReporter:
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


class PartialFilter:
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


class HypothesisTracker:
    """Takes hypotheses, moves what is stable into the transcript, and tells the rest as partials."""

    def __init__(self, config: StreamConfig, transcript: Transcript) -> None:
        self._policy = make_policy(config)
        self._display = PartialFilter(config.show_margin)
        self._transcript = transcript
        self._shown: tuple[Word, ...] = ()  # the last partial

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the newest hypothesis after the committed words."""
        return tuple(token for word in self._policy.latest for token in word.tokens)

    def forget(self) -> None:
        """The next hypothesis stands alone."""
        self._policy.reset()
        self._display.reset()

    def add(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Takes the newest hypothesis of the window."""
        stable = self._policy.add(words, window.seconds)
        events = self._commit(words[:stable], window)
        return events + self.show(self._display.add(words[stable:], window.seconds), window)

    def commit_first(self, words: Sequence[DecodedWord], sure: int, window: Window) -> list[Event]:
        """Commits the first ``sure`` words of a hypothesis, whatever others there were."""
        self.forget()
        self._policy.add(words, 0.0)
        return self._commit(words[:sure], window) + self.show(words[sure:], window)

    def commit_all(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Commits all words of the last hypothesis of an utterance."""
        self.forget()
        events: list[Event] = []
        if words:
            placed = self._transcript.commit(words, window.start, window.end)
            events.append(Commit(words=placed))
        return events + self.show((), window)

    def show(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """The unstable tail, where it has changed."""
        shown = tuple(self._transcript.place(words, window.start, window.end))
        if shown == self._shown:
            return []
        self._shown = shown
        return [Partial(words=shown)]

    def _commit(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Commits ``words``, the first ones of the newest hypothesis."""
        if not words:
            return []
        self._policy.committed(len(words))
        self._display.committed(len(words))
        return [Commit(words=self._transcript.commit(words, window.start, window.end))]
