"""Error rates against a reference text: of words, or of characters where words have no spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import jiwer

from ...model.text.normalizers import BasicTextNormalizer, EnglishTextNormalizer

__all__ = ["SPACELESS_LANGUAGES", "ErrorCount", "Scorer"]

SPACELESS_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

_DIGIT_WORD = r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)"
_DIGITS_IN_A_ROW = re.compile(rf"\b{_DIGIT_WORD} {_DIGIT_WORD}\b")


class ErrorCount(NamedTuple):
    errors: int  # words (or characters) wrong, missing or too many
    length: int  # of the reference, in words (or characters)

    @property
    def rate(self) -> float | None:
        """None where nothing is said: there, every word is one too many."""
        return self.errors / self.length if self.length else None


class Scorer:
    """Compares texts in one language, spelling out of the way (Radford et al. 2022, appendix C)."""

    def __init__(self, language: str) -> None:
        self._english = language == "en"
        self._normalize = EnglishTextNormalizer() if self._english else BasicTextNormalizer()
        self.by_character = language in SPACELESS_LANGUAGES

    def count(self, references: Sequence[str], hypothesis: str) -> ErrorCount:
        """Errors against the reference that fits best."""
        # a recogniser may well write "10001" for digits that were read one by one
        apart = self._english and any(
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


def _count(reference: list[str], hypothesis: list[str]) -> ErrorCount:
    if not reference or not hypothesis:
        return ErrorCount(len(reference) or len(hypothesis), len(reference))
    found = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    return ErrorCount(found.substitutions + found.insertions + found.deletions, len(reference))
