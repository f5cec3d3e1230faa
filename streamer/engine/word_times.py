"""Words of a hypothesis, from its tokens and their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...model.whisper.tokenizer import Tokenizer
from ...model.whisper.words import merge_punctuations, split_to_word_tokens
from ..jobs import DecodedWord

__all__ = ["timed_words"]


def timed_words(
    tokenizer: Tokenizer,
    language: str,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    starts: NDArray[np.float64],
    attended: NDArray[np.float64],
) -> tuple[DecodedWord, ...]:
    """Return the words of ``tokens``; ``starts`` has one entry more than those: the end of the last one.

    Times are in seconds. Punctuation joins its word, which keeps its own times.
    """
    pieces, piece_tokens = split_to_word_tokens(tokenizer, list(tokens), language)
    edges = [0, *accumulate(len(piece) for piece in piece_tokens)]  # in tokens
    chances = [math.exp(logprob) for logprob in logprobs]
    begins, looks = starts.tolist(), attended.tolist()
    words: list[DecodedWord] = []
    for merged in merge_punctuations(pieces):
        start, end = edges[merged.core], edges[merged.core + 1]
        words.append(
            DecodedWord(
                text=merged.text,
                tokens=tuple(token for i in merged.members for token in piece_tokens[i]),
                start=begins[start],
                end=begins[end],
                probability=sum(chances[start:end]) / (end - start),
                attended=max(looks[start:end]),
            )
        )
    return tuple(words)
