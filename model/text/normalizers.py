"""Text normalizers: spelling out of the way before two transcripts are compared.

The rules are those of Radford et al. 2022, appendix C, so that error rates compare with published
ones: brackets, fillers and punctuation go, contractions are written out, numbers become digits,
British spellings become American.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib import resources

from .number_words import NumberNormalizer

__all__ = ["BasicTextNormalizer", "EnglishTextNormalizer"]

# Letters that Unicode does not decompose into a plain one and a mark.
_PLAIN_LETTERS = {
    **{"œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "AE", "ß": "ss", "ẞ": "SS"},
    **{"đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "th", "ł": "l", "Ł": "L"},
}


class _CharacterTable(dict[int, str]):
    """A table for ``str.translate`` that works each character out when it is first met."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = replaced = self._rule(chr(code))
        return replaced


def _space_for_symbol(character: str) -> str:
    """Replace marks, symbols and punctuation."""
    return " " if unicodedata.category(character)[0] in "MSP" else character


def _plain(character: str) -> str:
    """Replace symbols and punctuation, and take diacritics off."""
    if character in _PLAIN_LETTERS:
        return _PLAIN_LETTERS[character]
    if unicodedata.category(character) == "Mn":
        return ""
    return _space_for_symbol(character)


_NUMERIC_SYMBOLS = frozenset(".%$¢€£")

_SYMBOLS = _CharacterTable(_space_for_symbol)
_SYMBOLS_AND_DIACRITICS = _CharacterTable(_plain)
_ALL_BUT_NUMERIC = _CharacterTable(
    lambda character: character if character in _NUMERIC_SYMBOLS else _plain(character)
)


def _without_brackets(text: str) -> str:
    text = re.sub(r"[<\[][^>\]]*[>\]]", "", text)
    return re.sub(r"\(([^)]+?)\)", "", text)


class BasicTextNormalizer:
    """For any language: lower case, no brackets, no punctuation, single spaces."""

    def __init__(self, remove_diacritics: bool = False, split_letters: bool = False) -> None:
        """``split_letters`` puts a space between characters, for languages without spaces."""
        self.remove_diacritics = remove_diacritics
        self.split_letters = split_letters

    def __call__(self, text: str) -> str:
        text = _without_brackets(text.lower())
        if self.remove_diacritics:
            text = unicodedata.normalize("NFKD", text).translate(_SYMBOLS_AND_DIACRITICS)
        else:
            text = unicodedata.normalize("NFKC", text).translate(_SYMBOLS)
        text = text.lower()
        if self.split_letters:
            import regex  # type: ignore[import-untyped]  # only here, and slow to load

            text = " ".join(regex.findall(r"\X", text))
        return re.sub(r"\s+", " ", text)


_FILLERS = re.compile(r"\b(hmm|mm|mhm|mmm|uh|um)\b")

_WHOLE_WORDS = {
    **{"won't": "will not", "can't": "can not", "let's": "let us", "ain't": "aint"},
    **{"y'all": "you all", "wanna": "want to", "gotta": "got to", "gonna": "going to"},
    **{"i'ma": "i am going to", "imma": "i am going to", "ma'am": "madam"},
    **{"woulda": "would have", "coulda": "could have", "shoulda": "should have"},
}
_TITLES = {
    **{"mr": "mister", "mrs": "missus", "st": "saint", "dr": "doctor", "prof": "professor"},
    **{"capt": "captain", "gov": "governor", "ald": "alderman", "gen": "general"},
    **{"sen": "senator", "rep": "representative", "pres": "president", "rev": "reverend"},
    **{"hon": "honorable", "asst": "assistant", "assoc": "associate", "lt": "lieutenant"},
    **{"col": "colonel", "jr": "junior", "sr": "senior", "esq": "esquire"},
}
# Tried in order: participles decide what 's and 'd stand for before the general case.
_ENDINGS = (
    ("'d been", "had been"),
    ("'s been", "has been"),
    ("'d gone", "had gone"),
    ("'s gone", "has gone"),
    ("'d done", "had done"),
    ("'s got", "has got"),
    ("n't", "not"),
    ("'re", "are"),
    ("'s", "is"),
    ("'d", "would"),
    ("'ll", "will"),
    ("'t", "not"),
    ("'ve", "have"),
    ("'m", "am"),
)

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _any_of(words: dict[str, str]) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(words)})\b")


_BEFORE_NUMBERS: tuple[Rule, ...] = (
    (_FILLERS, ""),
    (re.compile(r"\s+'"), "'"),
    (_any_of(_WHOLE_WORDS), lambda match: _WHOLE_WORDS[match[1]]),
    (_any_of(_TITLES), lambda match: f"{_TITLES[match[1]]} "),
    *((re.compile(rf"{ending}\b"), f" {written_out}") for ending, written_out in _ENDINGS),
    (re.compile(r"(\d),(\d)"), r"\1\2"),
    (re.compile(r"\.([^0-9]|$)"), r" \1"),  # full stops, but no decimal points
)
# Symbols that numbers left behind.
_AFTER_NUMBERS: tuple[Rule, ...] = (
    (re.compile(r"[.$¢€£]([^0-9])"), r" \1"),
    (re.compile(r"([^0-9])%"), r"\1 "),
    (re.compile(r"\s+"), " "),
)


def _apply(rules: tuple[Rule, ...], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


@cache
def _american_spellings() -> dict[str, str]:
    asset = resources.files(__package__.rpartition(".")[0]).joinpath(
        "assets", "english_spelling.json"
    )
    spellings: dict[str, str] = json.loads(asset.read_bytes())
    return spellings


class EnglishTextNormalizer:
    """For English: contractions, titles, numbers, currencies and spelling written one way."""

    def __init__(self) -> None:
        self._numbers = NumberNormalizer()
        self._spellings = _american_spellings()

    def __call__(self, text: str) -> str:
        text = _apply(_BEFORE_NUMBERS, _without_brackets(text.lower()))
        text = unicodedata.normalize("NFKD", text).translate(_ALL_BUT_NUMERIC)
        text = self._numbers(text)
        text = " ".join(self._spellings.get(word, word) for word in text.split())
        return _apply(_AFTER_NUMBERS, text)
