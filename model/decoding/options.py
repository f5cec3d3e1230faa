"""Options of decoding one window, checked before any work is done. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import DecodingOptionsError
from ..whisper.languages import language_code

__all__ = ["TASKS", "DecodingOptions"]

TASKS = ("transcribe", "translate", "lang_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """How one window of 30 seconds is decoded. Names and defaults are those of the reference.

    Raises:
        DecodingOptionsError: a value, or a combination of them, makes no sense; names the field.
    """

    task: str = "transcribe"  # or translate (into English), or lang_id (language only)
    language: str | None = None  # ISO code or English name; None: detect it

    temperature: float = 0.0  # 0 takes the likeliest token, above 0 samples
    sample_len: int | None = None  # most tokens to sample; None: half the text context (224)
    best_of: int | None = None  # independent samples to choose from, at temperature > 0
    beam_size: int | None = None  # None: no beam search
    patience: float | None = None  # beams to finish, in multiples of beam_size (arXiv:2204.05424)
    length_penalty: float | None = None  # alpha of Google NMT, 0..1; None: mean log-probability

    prompt: str | Iterable[int] | None = None  # text or tokens said before this window
    prefix: str | Iterable[int] | None = None  # text or tokens this window must begin with

    # Token ids, or the same separated by commas; -1 stands for the non-speech set. Nothing at all
    # (None, "" or no tokens) leaves even the special tokens unsuppressed, as in the reference.
    suppress_tokens: str | Iterable[int] | None = "-1"
    suppress_blank: bool = True  # the first token is neither a space nor the end

    without_timestamps: bool = False  # text tokens only
    # seconds by which the first segment must begin; None, and 0 as in the reference: no limit
    max_initial_timestamp: float | None = 1.0

    # False insists on full precision. The precision itself is the model's, chosen at loading.
    fp16: bool = True

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise DecodingOptionsError(f"task must be one of {', '.join(TASKS)}, not {self.task!r}")
        if self.language is not None:
            _set(self, "language", language_code(self.language))
        self._check_numbers()
        self._check_combinations()
        _set(self, "prompt", _text_or_tokens("prompt", self.prompt))
        _set(self, "prefix", _text_or_tokens("prefix", self.prefix))
        _set(self, "suppress_tokens", _token_ids(self.suppress_tokens))

    def _check_numbers(self) -> None:
        for name in ("sample_len", "best_of", "beam_size"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise DecodingOptionsError(f"{name} must be a whole number above 0, not {value!r}")
        for name in ("temperature", "patience", "length_penalty", "max_initial_timestamp"):
            value = getattr(self, name)
            if value is None and name != "temperature":
                continue
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise DecodingOptionsError(
                    f"{name} must be a number that is not negative, not {value!r}"
                )

    def _check_combinations(self) -> None:
        if self.beam_size is not None and self.best_of is not None:
            raise DecodingOptionsError(
                "beam_size and best_of exclude each other: give one of the two"
            )
        if self.best_of is not None and self.temperature == 0:
            raise DecodingOptionsError(
                "best_of chooses between samples: it needs a temperature above 0"
            )
        if self.patience is not None:
            if self.beam_size is None:
                raise DecodingOptionsError("patience belongs to beam search: give beam_size too")
            if round(self.beam_size * self.patience) < 1:
                raise DecodingOptionsError(
                    f"patience {self.patience} lets no beam of {self.beam_size} finish: raise it"
                )
        if self.length_penalty is not None and self.length_penalty > 1:
            raise DecodingOptionsError(
                f"length_penalty must lie between 0 and 1, not {self.length_penalty}"
            )


def _set(options: DecodingOptions, name: str, value: object) -> None:
    object.__setattr__(options, name, value)  # the normal form of a frozen field


def _text_or_tokens(name: str, value: str | Iterable[int] | None) -> str | tuple[int, ...] | None:
    if value is None or isinstance(value, str):
        return value
    tokens = tuple(value)
    if any(type(token) is not int or token < 0 for token in tokens):
        raise DecodingOptionsError(f"{name} must be text or token ids, which are not negative")
    return tokens


def _token_ids(value: str | Iterable[int] | None) -> tuple[int, ...] | None:
    if value is None or value == "":
        return None
    try:
        items = value.split(",") if isinstance(value, str) else value
        tokens = tuple(int(item) for item in items)
    except (TypeError, ValueError):
        raise DecodingOptionsError(
            f"suppress_tokens must be token ids separated by commas, not {value!r}"
        ) from None
    if any(token < -1 for token in tokens):
        raise DecodingOptionsError("suppress_tokens takes token ids, or -1 for the non-speech set")
    return tokens or None
