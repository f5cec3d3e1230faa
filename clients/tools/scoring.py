"""Error rates against a reference text: of words, or of characters where words have no spaces.

``bench`` compares normalised texts as the Whisper paper does. ``load`` compares casefolded letters and
digits only: numbers and spellings stay as they are written, so its rates are higher, and are for comparing
one load with another. Both count the errors of the same alignment.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jiwer

from ...model.text.normalizers import BasicTextNormalizer, EnglishTextNormalizer

__all__ = ["ErrorCount", "Scorer", "count_letter_errors", "letters_and_digits"]

_SPACELESS_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

_DIGIT_WORD = r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)"
_DIGITS_IN_A_ROW = re.compile(rf"\b{_DIGIT_WORD} {_DIGIT_WORD}\b")

_APOSTROPHES = frozenset("'’ʼ")  # within words: "don't" stays one
_KEPT = frozenset("LMN")  # Unicode categories of letters, their marks, and digits


class ErrorCount(NamedTuple):
    """Errors of one text against its reference, in words (or characters)."""

    errors: int  # wrong, missing or added
    length: int  # of the reference

    @property
    def rate(self) -> float | None:
        """Errors as a share of the reference; None where the reference has no words."""
        return self.errors / self.length if self.length else None


class Scorer:
    """Counts the errors of texts in one language.

    Args:
        language: an ISO code; errors are counted in characters where it writes no spaces.
        normalize: makes texts comparable. Default: Whisper's normaliser of the language
            (Radford et al. 2022, appendix C).
    """

    def __init__(self, language: str | None, normalize: Callable[[str], str] | None = None) -> None:
        english = language == "en"
        whisper = EnglishTextNormalizer() if english else BasicTextNormalizer()
        self._normalize = normalize if normalize is not None else whisper
        self._joins_digits = english and normalize is None
        self.by_character = language in _SPACELESS_LANGUAGES

    def count(self, references: Sequence[str], hypothesis: str) -> ErrorCount:
        """Return the errors of ``hypothesis`` against the one of ``references`` that fits best."""
        # a recogniser may well write "10001" for digits that were read one by one
        apart = self._joins_digits and any(
            _DIGITS_IN_A_ROW.search(reference.lower()) for reference in references
        )
        said = self._units(hypothesis, digits_apart=apart)
        counts = [
            _count(self._units(reference, digits_apart=apart), said) for reference in references
        ]
        return min(counts, key=lambda count: count.errors / max(1, count.length))

    def _units(self, text: str, *, digits_apart: bool) -> list[str]:
        if digits_apart:
            text = re.sub(r"(?<=\d)[.,:\s-]*(?=\d)", " ", text)
        text = self._normalize(text)
        if digits_apart:
            text = re.sub(r"\bone\b", "1", re.sub(r"\boh?\b", "0", text))
            text = re.sub(r"(?<=\d)(?=\d)", " ", text)
        return list("".join(text.split())) if self.by_character else text.split()


def letters_and_digits(text: str) -> str:
    """Return ``text`` casefolded, with a space for every other character."""
    return "".join(
        character if unicodedata.category(character)[0] in _KEPT else " "
        for character in unicodedata.normalize("NFKC", text).casefold()
        if character not in _APOSTROPHES
    )


def count_letter_errors(
    references: Sequence[str], text: str, language: str | None
) -> ErrorCount | None:
    """Return the errors of ``text`` in letters and digits; None without a reference that has words."""
    known = [reference for reference in references if letters_and_digits(reference).strip()]
    return Scorer(language, letters_and_digits).count(known, text) if known else None


def _count(reference: list[str], hypothesis: list[str]) -> ErrorCount:
    if not reference or not hypothesis:
        return ErrorCount(len(reference) or len(hypothesis), len(reference))
    found = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    return ErrorCount(found.substitutions + found.insertions + found.deletions, len(reference))
