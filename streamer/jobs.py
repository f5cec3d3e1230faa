"""Decode jobs, which streams give to the engine, and their results.

Both are plain values, so the same interface serves an engine in a thread of this process and one in
another process, and a failed job can be run again anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["DecodeJob", "DecodeResult", "DecodedWord", "Task"]

Task = Literal["transcribe", "translate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeJob:
    """One window of one stream, to be decoded.

    The decoder sees ``<|startofprev|> prompt <|startoftranscript|> language task prefix`` and goes on
    from there; ``draft`` is a guess at what follows, which is checked in one pass and never changes
    the result.
    """

    audio: NDArray[np.float32]  # [S], 16 kHz mono in -1..1, at most 30 s
    prompt: tuple[int, ...] = ()  # text before the window, at most 223 tokens
    prefix: tuple[int, ...] = ()  # tokens committed inside the window: forced, not decoded again
    draft: tuple[int, ...] = ()  # tokens of the previous hypothesis after the prefix
    language: str | None = None  # ISO code; None: detect
    languages: tuple[str, ...] = ()  # ISO codes that may be detected; empty: all
    # The probability from which a language other than ``language`` is taken; None: it is not doubted.
    switch_above: float | None = None
    task: Task = "transcribe"
    endpoint: bool = False  # the words will be committed: the temperature fallback applies
    # Many others wait: an endpoint makes do with an update's context, and in a batch without beams.
    hurried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedWord:
    """A word of a hypothesis. Its ``text`` keeps the leading space, so joined texts give the transcript."""

    text: str
    tokens: tuple[int, ...]
    start: float  # seconds from the start of the window
    end: float
    probability: float  # mean over the word's tokens
    attended: float = 0.0  # seconds; the latest of the places that its tokens attend to most


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """The hypothesis for the part of the window after the job's prefix."""

    tokens: tuple[int, ...]  # without special tokens
    words: tuple[DecodedWord, ...]
    language: str
    language_probability: float | None = None  # None when the language was given and not doubted
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    compression_ratio: float = 1.0
    temperature: float = 0.0
    looped: bool = False  # the text had begun to repeat itself
    accepted_draft: int = 0  # draft tokens that the model confirmed
    steps: int = 0  # decoder passes run
