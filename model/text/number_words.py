"""The words English writes numbers with, and what each is worth.

English number words to digits: "two hundred and five dollars" becomes "$205".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

__all__ = [
    "CURRENCIES",
    "DIGIT_WORDS",
    "MULTIPLIERS",
    "NumberNormalizer",
    "ONES",
    "PREFIXES",
    "REPEATS",
    "SIGNS",
    "SUFFIXED_MULTIPLIERS",
    "SUFFIXED_ONES",
    "SUFFIXED_TENS",
    "TENS",
    "ZEROS",
]

ONES = {
    name: value
    for value, name in enumerate(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen".split(),
        start=1,
    )
}
TENS = {
    name: 10 * value
    for value, name in enumerate(
        "twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2
    )
}
MULTIPLIERS = {
    "hundred": 100,
    **{
        name: 1000**power
        for power, name in enumerate(
            "thousand million billion trillion quadrillion quintillion sextillion septillion "
            "octillion nonillion decillion".split(),
            start=1,
        )
    },
}
ZEROS = frozenset({"o", "oh", "zero"})
_IRREGULAR_ORDINALS = {
    **{"zeroth": (0, "th"), "first": (1, "st"), "second": (2, "nd"), "third": (3, "rd")},
    **{"fifth": (5, "th"), "twelfth": (12, "th")},
}
SUFFIXED_ONES = {
    **{("sixes" if name == "six" else f"{name}s"): (value, "s") for name, value in ONES.items()},
    **{
        f"{name}h" if name.endswith("t") else f"{name}th": (value, "th")
        for name, value in ONES.items()
        if value > 3 and value not in (5, 12)
    },
    **_IRREGULAR_ORDINALS,
}
SUFFIXED_TENS = {
    **{name.replace("y", "ies"): (value, "s") for name, value in TENS.items()},
    **{name.replace("y", "ieth"): (value, "th") for name, value in TENS.items()},
}
SUFFIXED_MULTIPLIERS = {
    f"{name}{suffix}": (value, suffix)
    for name, value in MULTIPLIERS.items()
    for suffix in ("s", "th")
}
SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
CURRENCIES = {
    **{"pound": "£", "pounds": "£", "euro": "€", "euros": "€"},
    **{"dollar": "$", "dollars": "$", "cent": "¢", "cents": "¢"},
}
REPEATS = {"double": 2, "triple": 3}
DIGIT_WORDS = frozenset({*ONES, *TENS, *ZEROS})  # may follow "point"
PREFIXES = frozenset({*SIGNS.values(), *CURRENCIES.values()})


Value = int | str  # int while words can still add to it; str once it is a row of digits

_DIGITS = re.compile(r"\d+(\.\d+)?")


def _is_digits(word: str | None) -> bool:
    return word is not None and _DIGITS.fullmatch(word) is not None


def _is_number_word(word: str | None) -> bool:
    return word in _HANDLERS


def _may_be_number(word: str | None) -> bool:
    return _is_number_word(word) or _is_digits(word)


def _fraction(digits: Value) -> Fraction | None:
    try:
        return Fraction(digits)
    except ValueError:  # several points, as in an address of the internet
        return None


class _Reading:
    """One pass over the words of a text, with the number that is being put together."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.output: list[str] = []
        self.value: Value | None = None
        self.prefix = ""  # sign or currency of the number to come
        self.index = 0

    def run(self) -> list[str]:
        while self.index < len(self.words):
            word = self.words[self.index]
            if _is_digits(word[1:] if word[0] in PREFIXES else word):
                self.take_digits(word)
            elif handler := _HANDLERS.get(word):
                handler(self, word)
            else:
                self.emit_word(word)
            self.index += 1
        self.flush()
        return self.output

    @property
    def previous(self) -> str | None:
        return self.words[self.index - 1] if self.index else None

    @property
    def following(self) -> str | None:
        return self.words[self.index + 1] if self.index + 1 < len(self.words) else None

    def emit(self, result: Value) -> None:
        """Write a result with the prefix that waits for it; the number is done."""
        self.output.append(f"{self.prefix}{result}")
        self.value, self.prefix = None, ""

    def flush(self) -> None:
        if self.value is not None:
            self.emit(self.value)

    def emit_word(self, word: str) -> None:
        """Write a word that is no part of a number."""
        self.flush()
        self.emit(word)

    def take_digits(self, word: str) -> None:
        if isinstance(self.value, str) and self.value.endswith("."):
            self.value += word
            return
        self.flush()
        digits = word
        if word[0] in PREFIXES:
            self.prefix, digits = word[0], word[1:]
        exact = _fraction(digits)
        whole = exact is not None and exact.denominator == 1
        self.value = exact.numerator if exact is not None and whole else digits

    def take_zero(self, word: str) -> None:
        self.value = f"{self.value or ''}0"

    def take_one(self, word: str) -> None:
        self.value = self.with_ones(ONES[word])

    def take_suffixed_one(self, word: str) -> None:
        ones, suffix = SUFFIXED_ONES[word]
        self.emit(f"{self.with_ones(ones)}{suffix}")

    def with_ones(self, ones: int) -> Value:
        """Add 0 to 19 to the number: in the free places, or else as more digits."""
        if self.value is None:
            return ones
        if isinstance(self.value, str) or self.previous in ONES:
            digits = str(self.value)
            return f"{digits[:-1] if self.previous in TENS and ones < 10 else digits}{ones}"
        free = 10 if ones < 10 else 100
        return self.value + ones if self.value % free == 0 else f"{self.value}{ones}"

    def take_ten(self, word: str) -> None:
        self.value = self.with_tens(TENS[word])

    def take_suffixed_ten(self, word: str) -> None:
        tens, suffix = SUFFIXED_TENS[word]
        self.emit(f"{self.with_tens(tens)}{suffix}")

    def with_tens(self, tens: int) -> Value:
        if self.value is None:
            return tens
        if isinstance(self.value, int) and self.value % 100 == 0:
            return self.value + tens
        return f"{self.value}{tens}"

    def take_multiplier(self, word: str) -> None:
        self.value = self.multiplied(MULTIPLIERS[word])

    def take_suffixed_multiplier(self, word: str) -> None:
        multiplier, suffix = SUFFIXED_MULTIPLIERS[word]
        self.emit(f"{self.multiplied(multiplier)}{suffix}")

    def multiplied(self, multiplier: int) -> int:
        """Multiply the number, or its last three digits: "two thousand three hundred".

        What cannot be multiplied to a whole number is written as it is, and a new number begins.
        """
        if self.value is None:
            return multiplier
        if isinstance(self.value, int):
            thousands, rest = divmod(self.value, 1000)
            return thousands * 1000 + rest * multiplier
        exact = _fraction(self.value)
        if exact is not None and (exact * multiplier).denominator == 1:
            return (exact * multiplier).numerator
        self.emit(self.value)
        return multiplier

    def take_sign(self, word: str) -> None:
        self.flush()
        if _may_be_number(self.following):
            self.prefix = SIGNS[word]
        else:
            self.emit(word)

    def take_currency(self, word: str) -> None:
        if self.value is None:
            self.emit(word)
        else:
            self.prefix = CURRENCIES[word]
            self.flush()

    def take_percent(self, word: str) -> None:
        self.emit(word if self.value is None else f"{self.value}%")

    def take_per(self, word: str) -> None:
        if self.value is not None and self.following == "cent":
            self.emit(f"{self.value}%")
            self.index += 1
        else:
            self.emit_word(word)

    def take_and(self, word: str) -> None:
        """Drop "and" between a multiplier and more of its number."""
        if not (_may_be_number(self.following) and self.previous in MULTIPLIERS):
            self.emit_word(word)

    def take_repeat(self, word: str) -> None:
        digit = self.following
        if digit in ONES or digit in ZEROS:
            self.value = f"{self.value or ''}{str(ONES.get(digit or '', 0)) * REPEATS[word]}"
            self.index += 1
        else:
            self.emit_word(word)

    def take_point(self, word: str) -> None:
        if self.following in DIGIT_WORDS or _is_digits(self.following):
            self.value = f"{self.value or ''}."
        elif not _is_number_word(self.following):
            self.emit_word(word)


_Handler = Callable[[_Reading, str], None]
_HANDLERS: dict[str | None, _Handler] = {
    **dict.fromkeys(ZEROS, _Reading.take_zero),
    **dict.fromkeys(ONES, _Reading.take_one),
    **dict.fromkeys(SUFFIXED_ONES, _Reading.take_suffixed_one),
    **dict.fromkeys(TENS, _Reading.take_ten),
    **dict.fromkeys(SUFFIXED_TENS, _Reading.take_suffixed_ten),
    **dict.fromkeys(MULTIPLIERS, _Reading.take_multiplier),
    **dict.fromkeys(SUFFIXED_MULTIPLIERS, _Reading.take_suffixed_multiplier),
    **dict.fromkeys(SIGNS, _Reading.take_sign),
    **dict.fromkeys(CURRENCIES, _Reading.take_currency),
    **dict.fromkeys(REPEATS, _Reading.take_repeat),
    "percent": _Reading.take_percent,
    "per": _Reading.take_per,
    "and": _Reading.take_and,
    "point": _Reading.take_point,
}


class NumberNormalizer:
    """Writes the numbers of a lower-case English text in digits.

    Signs and currencies come before the digits, ordinals keep their ending, single digits in a row
    are read as one number ("one oh one" is 101), and a lone "one" stays a word.
    """

    def __call__(self, text: str) -> str:
        words = _separate(_halves(text)).split()
        return _finish(" ".join(_Reading(words).run()))


def _halves(text: str) -> str:
    """Write "two and a half" as "two point five"."""
    *heads, tail = re.split(r"\band\s+a\s+half\b", text)
    parts: list[str] = []
    for head in heads:
        if head.strip():
            last_word = head.split()[-1]
            counts = last_word in DIGIT_WORDS or last_word in MULTIPLIERS
            parts += [head, "point five" if counts else "and a half"]
    if tail.strip():
        parts.append(tail)
    return " ".join(parts)


def _separate(text: str) -> str:
    """Put spaces between letters and digits, except before the ending of an ordinal or plural."""
    text = re.sub(r"([a-z])([0-9])", r"\1 \2", text)
    text = re.sub(r"([0-9])([a-z])", r"\1 \2", text)
    return re.sub(r"([0-9])\s+(st|nd|rd|th|s)\b", r"\1\2", text)


def _finish(text: str) -> str:
    """Join dollars and cents, write cents alone as such, and a lone 1 as a word."""
    text = re.sub(
        r"([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})\b",
        lambda match: f"{match[1]}{match[2]}.{int(match[3]):02d}",
        text,
    )
    # Any character may stand for the point here: published error rates were computed so.
    text = re.sub(r"[€£$]0.([0-9]{1,2})\b", lambda match: f"¢{int(match[1])}", text)
    return re.sub(r"\b1(s?)\b", r"one\1", text)
