"""The words English writes numbers with, and what each is worth."""

from __future__ import annotations

__all__ = [
    "CURRENCIES",
    "DIGIT_WORDS",
    "MULTIPLIERS",
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
