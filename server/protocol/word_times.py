"""Times at which words were first shown and committed, gathered from the messages of a stream. No I/O.

A moment is the number of seconds of audio received until then. It compares with the times of words, however
fast the audio is played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from .messages import (
    Commit,
    Language,
    Partial,
    Ready,
    ServerMessage,
    SpeechStarted,
    SpeechStopped,
    Word,
)

__all__ = ["StreamTimes", "TimedWord", "WordTimes", "delays"]

_SAME_SECONDS = 0.4  # between the middles of a word's first and final times
_MOST_SHOWN = 4_000  # words of partials remembered for the commits to come


class TimedWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word, and the moments at which it was first shown and committed.

    Attributes:
        start, end: seconds of the stream.
        shown: moment at which it appeared first.
        committed: moment of its commit; None while it may still change.
    """

    text: str
    start: float
    end: float
    probability: float
    shown: float
    committed: float | None


@dataclass(frozen=True, slots=True)
class _Shown:
    word: Word
    at: float


class WordTimes:
    """Matches committed words with the partials that showed them first."""

    def __init__(self) -> None:
        self._shown: deque[_Shown] = deque(maxlen=_MOST_SHOWN)
        self._partial: tuple[Word, ...] = ()

    def show(self, words: Sequence[Word], at: float) -> None:
        """Note the words of a partial at the moment ``at``: they replace those of the one before."""
        before = set(self._partial)
        self._shown.extend(_Shown(word, at) for word in words if word not in before)
        self._partial = tuple(words)

    def commit(self, words: Sequence[Word], at: float) -> list[TimedWord]:
        """Return committed words with their times; words of partials that ended long before are forgotten."""
        timed = [self._time(word, at, committed=round(at, 3)) for word in words]
        while words and self._shown and self._shown[0].word.end < words[-1].end - 1:
            self._shown.popleft()
        self._partial = ()
        return timed

    def unstable(self, now: float) -> list[TimedWord]:
        """Return the words that may still change."""
        return [self._time(word, now, committed=None) for word in self._partial]

    def _time(self, word: Word, at: float, committed: float | None) -> TimedWord:
        first = next((old.at for old in self._shown if _same(old.word, word)), at)
        return TimedWord(
            text=word.text,
            start=word.start,
            end=word.end,
            probability=word.probability,
            shown=round(min(first, at), 3),
            committed=committed,
        )


class StreamTimes:
    """Words, speech and language of one stream, gathered from its messages.

    Args:
        most_words: committed words that are kept; None: all.
        most_speech: stretches of speech that are kept; None: all.

    Attributes:
        language: empty while it is not known.
        words: committed, with their times.
    """

    def __init__(self, most_words: int | None = None, most_speech: int | None = None) -> None:
        self.language = ""
        self.words: deque[TimedWord] = deque(maxlen=most_words)
        self._times = WordTimes()
        self._speech: deque[list[float]] = deque(maxlen=most_speech)  # start and end

    def on_message(self, message: ServerMessage, at: float) -> None:
        """Take a message that came when ``at`` seconds of audio had been received."""
        match message:
            case Ready():
                self.language = message.language or ""
            case Language():
                self.language = message.language
            case SpeechStarted():
                self._speech.append([message.time, message.time])
            case SpeechStopped() if self._speech:
                self._speech[-1][1] = message.time
            case Partial():
                self._times.show(message.words, at)
            case Commit():
                self.words.extend(self._times.commit(message.words, at))

    def speech(self, now: float) -> list[tuple[float, float]]:
        """Return start and end of each stretch of speech, in seconds; one that goes on ends ``now``."""
        return [(start, end if end > start else now) for start, end in self._speech]

    def unstable(self, now: float) -> list[TimedWord]:
        """Return the words that may still change."""
        return self._times.unstable(now)


def delays(words: Sequence[TimedWord]) -> dict[str, str]:
    """Return median and 95th percentile of the time from words' ends until they were shown, and committed."""
    final = [(word, word.committed) for word in words if word.committed is not None]
    if not final:
        return {}
    return {
        "Shown after": _spread([max(0.0, word.shown - word.end) for word, _ in final]),
        "Committed after": _spread([max(0.0, at - word.end) for word, at in final]),
    }


def _same(one: Word, other: Word) -> bool:
    middles = abs((one.start + one.end) - (other.start + other.end)) / 2
    return middles <= _SAME_SECONDS and _letters(one.text) == _letters(other.text)


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _spread(seconds: list[float]) -> str:
    middle, late = np.quantile(seconds, [0.5, 0.95])
    return f"{middle:.2f} s (95 %: {late:.2f} s)"
