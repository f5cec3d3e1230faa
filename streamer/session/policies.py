"""LocalAgreement: which words of the newest hypothesis may be committed.

Source: Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by Partial
Hypothesis Selection", 2020 (LocalAgreement-n).

Which words of the newest hypothesis may be committed: the policies, behind one interface.

``local-agreement``
    what two hypotheses in a row have in common (see ``agreement``).
``align-att``
    what the model heard well before the end of the audio: the attention of a word's tokens must lie
    there. Source: Papi et al., "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide
    for Simultaneous Speech Translation", Interspeech 2023; here for whole words only.
``either``
    what one of the two would commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from ..config import StreamConfig
from ..jobs import DecodedWord

__all__ = ["AlignAtt", "CommitPolicy", "Either", "LocalAgreement", "common_words", "make_policy"]


def common_words(hypotheses: Sequence[Sequence[DecodedWord]]) -> int:
    """How many leading words are the same, token for token, in every hypothesis."""
    if not hypotheses:
        return 0
    count = 0
    for words in zip(*hypotheses, strict=False):
        if any(word.tokens != words[0].tokens for word in words[1:]):
            break
        count += 1
    return count


class LocalAgreement:
    """Keeps the last n hypotheses after the committed prefix, and says what they agree on.

    A word is compared with its punctuation, so half a word or a comma that is still in doubt holds
    the commit back. A word that the end of the audio may have cut, or that more audio may change, is
    not agreed upon yet: it must end ``margin`` seconds before the end of the audio, and one that the
    model is less than ``sure`` of, ``doubtful_margin`` seconds.
    """

    def __init__(
        self, n: int, *, margin: float, sure: float = 0.0, doubtful_margin: float = 0.0
    ) -> None:
        if n < 2:
            raise ValueError(f"agreement needs at least 2 hypotheses, not {n}")
        self._n = n
        self._margin = margin
        self._sure = sure
        self._unsure_margin = doubtful_margin
        self._history: list[tuple[DecodedWord, ...]] = []

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words: the next draft."""
        return self._history[-1] if self._history else ()

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Takes the newest hypothesis and returns how many of its words are stable.

        ``words`` and ``audio_seconds`` (the length of audio decoded) are on the window's clock.
        The caller commits that many at most, and tells ``committed``.
        """
        self._history.append(tuple(words))
        del self._history[: -self._n]
        if len(self._history) < self._n:
            return 0
        agreed = words[: common_words(self._history)]
        for count, word in enumerate(agreed):
            margin = self._margin if word.probability >= self._sure else self._unsure_margin
            if word.end > audio_seconds - margin:
                return count
        return len(agreed)

    def committed(self, count: int) -> None:
        """The first ``count`` words are committed now: they leave every hypothesis kept."""
        self._history = [words[count:] for words in self._history]

    def reset(self) -> None:
        """Forgets all hypotheses: the next one stands alone."""
        self._history = []


class CommitPolicy(Protocol):
    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        """The newest hypothesis after the committed words: the next draft."""
        ...

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        """Takes the newest hypothesis and returns how many of its words are stable.

        ``words`` and ``audio_seconds`` (the length of audio decoded) are on the window's clock.
        The caller commits that many at most, and tells ``committed``.
        """
        ...

    def committed(self, count: int) -> None:
        """The first ``count`` words are committed now."""
        ...

    def reset(self) -> None:
        """Forgets all hypotheses: the next one stands alone."""
        ...


class AlignAtt:
    """A word is stable once its tokens attend to audio at least ``margin`` seconds before its end."""

    def __init__(self, *, margin: float) -> None:
        self._margin = margin
        self._latest: tuple[DecodedWord, ...] = ()

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        return self._latest

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        self._latest = tuple(words)
        limit = audio_seconds - self._margin
        heard = takewhile(lambda word: max(word.attended, word.end) <= limit, words)
        return sum(1 for _ in heard)

    def committed(self, count: int) -> None:
        self._latest = self._latest[count:]

    def reset(self) -> None:
        self._latest = ()


class Either:
    """Commits as far as the more daring of two policies would."""

    def __init__(self, first: CommitPolicy, second: CommitPolicy) -> None:
        self._both = (first, second)

    @property
    def latest(self) -> tuple[DecodedWord, ...]:
        return self._both[0].latest

    def add(self, words: Sequence[DecodedWord], audio_seconds: float) -> int:
        return max([policy.add(words, audio_seconds) for policy in self._both])

    def committed(self, count: int) -> None:
        for policy in self._both:
            policy.committed(count)

    def reset(self) -> None:
        for policy in self._both:
            policy.reset()


def make_policy(config: StreamConfig) -> CommitPolicy:
    """The policy that ``config`` asks for."""
    agreement = LocalAgreement(
        config.agreement,
        margin=config.commit_margin,
        sure=config.commit_probability,
        doubtful_margin=config.doubtful_margin,
    )
    if config.policy == "local-agreement":
        return agreement
    attention = AlignAtt(margin=config.attention_margin)
    return attention if config.policy == "align-att" else Either(agreement, attention)
