"""Word error rates of streams: casefolded letters and digits only, by jiwer.

Simpler than the normalisation of ``whisper-stream bench``: numbers and spellings stay as they are
written, so rates are higher. They are for comparing one load with another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import jiwer

__all__ = ["Errors", "count_errors", "units"]

_SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_APOSTROPHES = frozenset("'’ʼ")  # within words: "don't" stays one
_KEPT = frozenset("LMN")  # letters, their marks, digits


class Errors(NamedTuple):
    errors: int  # words wrong, missing or too many
    length: int  # of the reference, in words


def units(text: str, language: str | None) -> list[str]:
    """The words to compare; characters where the language writes no spaces."""
    letters = [
        character if unicodedata.category(character)[0] in _KEPT else " "
        for character in unicodedata.normalize("NFKC", text).casefold()
        if character not in _APOSTROPHES
    ]
    words = "".join(letters).split()
    return list("".join(words)) if language in _SPACELESS else words


def count_errors(references: Sequence[str], text: str, language: str | None) -> Errors | None:
    """Errors against the reference that fits best; None without one that has words."""
    said = units(text, language)
    counts = [
        _count(reference, said)
        for reference in (units(each, language) for each in references)
        if reference
    ]
    return min(counts, key=lambda count: count.errors / count.length, default=None)


def _count(reference: list[str], said: list[str]) -> Errors:
    if not said:
        return Errors(len(reference), len(reference))
    found = jiwer.process_words(" ".join(reference), " ".join(said))
    return Errors(found.substitutions + found.insertions + found.deletions, len(reference))
