"""The decision which words of a hypothesis are committed, and which are shown as a partial.

Every update of a window gives a new hypothesis for the text after the committed words. A commit policy
says how many of its leading words are stable:

``local-agreement``
    those that the last n hypotheses have in common. Source: Liu et al., "Low-Latency
    Sequence-to-Sequence Speech Recognition and Translation by Partial Hypothesis Selection", 2020.
``align-att``
    those that the model heard well before the end of the audio: the attention of a word's tokens must
    lie there. Source: Papi et al., "AlignAtt: Using Attention-based Audio-Translation Alignments as a
    Guide for Simultaneous Speech Translation", Interspeech 2023; here for whole words only.
``either``
    those that one of the two would commit.

The other words are unstable. They are shown to the client, and are the draft of the next decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from ..config import StreamConfig
from ..events import Commit, Event, Partial, Word
from ..jobs import DecodedWord
from .transcript import CommittedText
from .window import Window

__all__ = [
    "AlignAtt",
    "CommitPolicy",
    "Either",
    "HypothesisTracker",
    "LocalAgreement",
    "count_common_words",
    "make_policy",
]


class CommitPolicy(Protocol):
    """A rule that says which words of the newest hypothesis are stable.

    Times are those of the window. The caller may commit fewer words than are stable.
    """

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words: the next draft."""
        ...

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Take the hypothesis ``words`` for ``audio_seconds`` of audio; return how many are stable."""
        ...

    def commit(self, count: int) -> None:
        """Drop the first ``count`` words from every hypothesis kept: they are committed now."""
        ...

    def reset(self) -> None:
        """Forget all hypotheses: the next one stands alone."""
        ...


class LocalAgreement:
    """The words that the last ``n`` hypotheses agree on, as far as they end before the audio does.

    A word is compared with its punctuation, so half a word or a comma that is still in doubt holds
    the commit back. A word near the end of the audio may have been cut, or be changed by more audio.

    Args:
        n: hypotheses that must agree.
        margin: seconds before the end of the audio by which a word must have ended.
        probability: of a word; one that is less likely must have ended ``doubtful_margin`` seconds before.

    Raises:
        ValueError: ``n`` is below 2.
    """

    def __init__(
        self,
        n: int,
        *,
        margin: float,
        probability: float = 0.0,
        doubtful_margin: float = 0.0,
    ) -> None:
        if n < 2:
            raise ValueError(f"agreement needs at least 2 hypotheses, not {n}")
        self._n = n
        self._margin = margin
        self._probability = probability
        self._doubtful_margin = doubtful_margin
        self._history: list[tuple[DecodedWord, ...]] = []

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words."""
        return self._history[-1] if self._history else ()

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Take the newest hypothesis; return how many of its words are stable."""
        self._history.append(tuple(words))
        del self._history[: -self._n]
        if len(self._history) < self._n:
            return 0
        agreed = words[: count_common_words(self._history)]
        for count, word in enumerate(agreed):
            likely = word.probability >= self._probability
            margin = self._margin if likely else self._doubtful_margin
            if word.end > audio_seconds - margin:
                return count
        return len(agreed)

    def commit(self, count: int) -> None:
        """Drop the first ``count`` words from every hypothesis kept."""
        self._history = [words[count:] for words in self._history]

    def reset(self) -> None:
        """Forget all hypotheses."""
        self._history = []


def count_common_words(hypotheses: Sequence[Sequence[DecodedWord]]) -> int:
    """Count the leading words that are the same, token for token, in all ``hypotheses``."""
    if not hypotheses:
        return 0
    count = 0
    for words in zip(*hypotheses, strict=False):
        if any(word.tokens != words[0].tokens for word in words[1:]):
            break
        count += 1
    return count


class AlignAtt:
    """The words whose tokens attend to audio at least ``margin`` seconds before its end."""

    def __init__(self, *, margin: float) -> None:
        self._margin = margin
        self._latest: tuple[DecodedWord, ...] = ()

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words."""
        return self._latest

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Take the newest hypothesis; return how many of its words are stable."""
        self._latest = tuple(words)
        limit = audio_seconds - self._margin
        heard = takewhile(lambda word: max(word.attended, word.end) <= limit, words)
        return sum(1 for _ in heard)

    def commit(self, count: int) -> None:
        """Drop the first ``count`` words from the hypothesis kept."""
        self._latest = self._latest[count:]

    def reset(self) -> None:
        """Forget the hypothesis."""
        self._latest = ()


class Either:
    """The words that the more daring of two policies would commit."""

    def __init__(self, first: CommitPolicy, second: CommitPolicy) -> None:
        self._both = (first, second)

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words."""
        return self._both[0].latest

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Take the newest hypothesis; return how many of its words are stable."""
        return max([policy.add(words, audio_seconds) for policy in self._both])

    def commit(self, count: int) -> None:
        """Drop the first ``count`` words from the hypotheses of both."""
        for policy in self._both:
            policy.commit(count)

    def reset(self) -> None:
        """Forget the hypotheses of both."""
        for policy in self._both:
            policy.reset()


def make_policy(config: StreamConfig) -> CommitPolicy:
    """Return the policy that ``config`` asks for, without any hypothesis yet."""
    agreement = LocalAgreement(
        config.agreement,
        margin=config.commit_margin,
        probability=config.commit_probability,
        doubtful_margin=config.doubtful_margin,
    )
    if config.policy == "local-agreement":
        return agreement
    attention = AlignAtt(margin=config.attention_margin)
    return attention if config.policy == "align-att" else Either(agreement, attention)


class HypothesisTracker:
    """Takes the hypotheses of a window, commits their stable words, and shows the others as partials.

    The words at the very end of the audio are held back from a partial, because the next update is
    likely to change them: a word is shown once it ends ``show_margin`` seconds before the end of the
    audio. A word that was shown and is still there stays, so that nothing flickers.
    """

    def __init__(self, config: StreamConfig, committed: CommittedText) -> None:
        self._policy = make_policy(config)
        self._margin = config.show_margin
        self._committed = committed
        self._shown: list[
            str
        ] = []  # texts of the unstable words shown, of hypotheses not forgotten
        self._partial: tuple[Word, ...] = ()  # the latest that the client has

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the newest hypothesis after the committed words."""
        return tuple(token for word in self._policy.latest for token in word.tokens)

    def reset(self) -> None:
        """Forget all hypotheses: the next one stands alone. The partial stays until another is shown."""
        self._policy.reset()
        self._shown.clear()

    def add(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Take the newest hypothesis ``words`` of ``window``: commit what is stable, show the others."""
        stable = self._policy.add(words, window.seconds)
        events = self._commit(words[:stable], window)
        return events + self.show(self._select(words[stable:], window.seconds), window)

    def commit_first(self, words: Sequence[DecodedWord], count: int, window: Window) -> list[Event]:
        """Commit the first ``count`` of ``words``, whatever the policy says, and show the others."""
        self.reset()
        self._policy.add(words, 0.0)
        return self._commit(words[:count], window) + self.show(words[count:], window)

    def commit_all(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Commit all ``words``, the last hypothesis of an utterance."""
        self.reset()
        events: list[Event] = []
        if words:
            events.append(Commit(words=self._committed.append(words, window.start, window.end)))
        return events + self.show((), window)

    def show(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Return a partial of ``words``, unless it is the one that the client has."""
        partial = tuple(self._committed.place(words, window.start, window.end))
        if partial == self._partial:
            return []
        self._partial = partial
        return [Partial(words=partial)]

    def _commit(self, words: Sequence[DecodedWord], window: Window) -> list[Event]:
        """Commit ``words``, the first ones of the newest hypothesis."""
        if not words:
            return []
        self._policy.commit(len(words))
        del self._shown[: len(words)]
        return [Commit(words=self._committed.append(words, window.start, window.end))]

    def _select(self, words: Sequence[DecodedWord], audio_seconds: float) -> Sequence[DecodedWord]:
        """Return the leading words of the unstable ``words`` that are to be shown."""
        count = 0
        for index, word in enumerate(words):
            known = index < len(self._shown) and self._shown[index] == word.text
            if not known and word.end > audio_seconds - self._margin:
                break
            count = index + 1
        self._shown = [word.text for word in words[:count]]
        return words[:count]
