"""Measures of one stream, from its events: delays, erasure, retraction. Pure functions.

A word's delay counts from its end in the audio. Words are compared by their letters and digits: one that
later gets a capital or a comma is the same word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jiwer

from ...streamer.config import SAMPLE_RATE
from ...streamer.events import Commit, Done, Event, Partial, SegmentClosed, Word
from ...streamer.simulator import TimedEvent
from .clips import SpokenWord

__all__ = [
    "CommittedWord",
    "Erasure",
    "committed_words",
    "erasure",
    "exact_spelling",
    "count_retracted",
    "spelling",
    "spoken_ends",
]

_SAME_PLACE = SAMPLE_RATE // 2  # a word whose middle moves no further is the same one


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWord:
    """A word of the stream's text; times are seconds since the first sample was spoken."""

    text: str
    shown: float  # when it was first to be seen at this place, in a partial or a commit
    committed: float


class Erasure(NamedTuple):
    """Counts of words on the screen.

    Attributes:
        shown: words that came into sight, each time that they did.
        changed: those of them that went again, dropped or replaced.
    """

    shown: int
    changed: int

    @property
    def share(self) -> float:
        """The share of shown words that went again."""
        return self.changed / self.shown if self.shown else 0.0


def spelling(text: str) -> str:
    """Return the letters and digits of ``text`` in lower case; empty if it is punctuation only."""
    return "".join(filter(str.isalnum, text.casefold()))


def exact_spelling(text: str) -> str:
    """Return ``text`` without the spaces around it."""
    return text.strip()


def committed_words(events: Iterable[TimedEvent]) -> tuple[CommittedWord, ...]:
    """Return every word of the stream's text with the times when it was shown and committed."""
    sightings: dict[str, dict[int, float]] = defaultdict(dict)  # spelling -> place -> first time
    words: list[CommittedWord] = []
    for time, event in ((timed.time, timed.event) for timed in events):
        if not isinstance(event, (Partial, Commit)):
            continue
        for word in event.words:
            sightings[spelling(word.text)].setdefault(_middle(word), time)
        if isinstance(event, Commit):
            words += [
                CommittedWord(
                    text=word.text,
                    shown=_first_shown(word, sightings[spelling(word.text)]),
                    committed=time,
                )
                for word in event.words
            ]
    return tuple(words)


def _middle(word: Word) -> int:
    return (word.start_sample + word.end_sample) // 2


def _first_shown(word: Word, sightings: dict[int, float]) -> float:
    place = _middle(word)
    return min(time for middle, time in sightings.items() if abs(middle - place) <= _SAME_PLACE)


def erasure(events: Iterable[Event], same: Callable[[str], str] = spelling) -> Erasure:
    """Count the words that were shown, and those of them that did not stay.

    The screen is compared whenever a partial replaces the last one, by the alignment with the fewest
    edits: a word that only moves, because one before it is new, has not changed.

    Args:
        events: those of one stream, in order.
        same: a key of a word's text. Words with equal keys are equal, and an empty key is not a word.
    """
    tail: list[str] = []  # the last partial
    committed: list[str] = []  # since that partial
    shown = changed = 0

    def words_of(words: Iterable[Word]) -> list[str]:
        return [text for word in words if (text := same(word.text))]

    def replace(partial: list[str]) -> None:
        nonlocal tail, committed, shown, changed
        now = committed + partial
        kept = sum(1 for _ in _equal_pairs(tail, now))
        shown += len(now) - kept
        changed += len(tail) - kept
        tail, committed = partial, []

    for event in events:
        match event:
            case Commit(words=words):
                committed += words_of(words)
            case Partial(words=words):
                replace(words_of(words))
            case _:
                pass
    replace([])
    return Erasure(shown, changed)


def count_retracted(events: Iterable[Event]) -> int:
    """Count committed words that a later event takes back or contradicts.

    A commit must follow, in the audio, what was committed before it; a closed segment must have
    exactly the words committed in it; and at the end all of them must be there.
    """
    count = 0
    open_words: list[Word] = []  # committed, their segment not closed
    total = 0
    end = 0  # in samples, of what is committed
    for event in events:
        match event:
            case Commit(words=words):
                count += sum(1 for word in words if word.start_sample < end)
                end = max([end, *(word.end_sample for word in words)])
                open_words += words
                total += len(words)
            case Partial(words=words):
                # a tail that begins in committed audio writes over it
                count += sum(1 for word in words if word.end_sample < end)
            case SegmentClosed(words=words):
                texts = [word.text for word in open_words]
                kept = sum(1 for _ in _equal_pairs(texts, [word.text for word in words]))
                count += len(open_words) - kept
                open_words = []
            case Done(words=said):
                count += max(0, total - said)
            case _:
                pass
    return count


def spoken_ends(
    texts: Sequence[str], timed: Sequence[SpokenWord], *, by_character: bool = False
) -> list[float | None]:
    """Return, for each word, when it ends in the speech; None for a word that was not said.

    Args:
        texts: the words of a stream.
        timed: the words as they were said.
        by_character: ``timed`` may cut words elsewhere, as where they are written without spaces;
            inside a word time is taken to pass evenly.
    """
    cut = _characters if by_character else _whole
    units: list[str] = []
    ends: list[float] = []
    for word in timed:
        pieces = cut(word.text)
        units += pieces
        step = (word.end - word.start) / max(1, len(pieces))
        ends += [word.end - step * (len(pieces) - 1 - i) for i in range(len(pieces))]
    said = [cut(text) for text in texts]
    found = {
        ours: theirs
        for theirs, ours in _equal_pairs(units, [unit for pieces in said for unit in pieces])
    }
    times: list[float | None] = []
    at = 0
    for pieces in said:
        at += len(pieces)
        times.append(ends[found[at - 1]] if pieces and at - 1 in found else None)
    return times


def _whole(text: str) -> list[str]:
    return [spelling(text)] if spelling(text) else []


def _characters(text: str) -> list[str]:
    return list(spelling(text))


def _equal_pairs(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the same word in both, by the alignment with the fewest edits."""
    if not before or not after:
        return
    # jiwer cuts at spaces: none may lie inside a word
    old, new = (
        " ".join("_".join(word.split()) or "_" for word in words) for words in (before, after)
    )
    for chunk in jiwer.process_words(old, new).alignments[0]:
        if chunk.type == "equal":
            yield from zip(
                range(chunk.ref_start_idx, chunk.ref_end_idx),
                range(chunk.hyp_start_idx, chunk.hyp_end_idx),
                strict=True,
            )
