"""Values of flags, from their text.

Each function raises argparse.ArgumentTypeError, to which argparse adds the flag's name.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable

__all__ = [
    "boolean",
    "iso_code",
    "iso_codes",
    "language",
    "model_name",
    "number",
    "number_from_zero",
    "number_or_none",
    "whole",
    "whole_between",
    "whole_or_none",
]


def model_name(text: str) -> str:
    """Return ``text`` if it is a published model's name or a path that exists."""
    from ...model.weights.registry import available_models, unknown_model

    if text in available_models() or os.path.exists(text):
        return text
    raise argparse.ArgumentTypeError(str(unknown_model(text)))


def language(text: str) -> str:
    """Return the code of a language that Whisper knows, given as a code or an English name."""
    from ...model.errors import DecodingOptionsError
    from ...model.whisper.languages import language_code

    try:
        return language_code(text)
    except DecodingOptionsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def iso_code(text: str) -> str:
    """Return a language code in lower case; whether a server knows it is for the server to say."""
    code = text.strip().lower()
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise argparse.ArgumentTypeError(f"{text!r} is no language code such as en or de")
    return code


def iso_codes(text: str) -> tuple[str, ...]:
    """Return language codes that have commas between them."""
    return tuple(iso_code(code) for code in text.split(",") if code.strip())


def boolean(text: str) -> bool:
    """Return True or False, in whatever case they are written."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def whole(text: str) -> int:
    """Return any whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def whole_between(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from ``least`` to ``most``, both 0 or more."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return read


def number(text: str) -> float:
    """Return any number, also an infinite one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def number_from_zero(text: str) -> float:
    """Return a finite number from 0 up."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return value


def whole_or_none(text: str) -> int | None:
    """Return a whole number; None for ``None``."""
    return None if text == "None" else whole(text)


def number_or_none(text: str) -> float | None:
    """Return a number; None for ``None``."""
    return None if text == "None" else number(text)
