"""Values of the flags of ``whisper-stream transcribe``, from their text. No torch here.

Each raises argparse.ArgumentTypeError, to which argparse adds the flag's name.
"""

from __future__ import annotations

import argparse
import math
import os

from ...model.errors import DecodingOptionsError
from ...model.weights.registry import available_models, unknown_model
from ...model.whisper.languages import language_code

__all__ = [
    "boolean",
    "language",
    "model_name",
    "number",
    "number_or_none",
    "whole",
    "whole_or_none",
]


def model_name(text: str) -> str:
    if text in available_models() or os.path.exists(text):
        return text
    raise argparse.ArgumentTypeError(str(unknown_model(text)))


def language(text: str) -> str:
    try:
        return language_code(text)
    except DecodingOptionsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def whole_or_none(text: str) -> int | None:
    return None if text == "None" else whole(text)


def number_or_none(text: str) -> float | None:
    return None if text == "None" else number(text)
