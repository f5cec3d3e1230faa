"""Rules on what the next token may be, as masks on its logits.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), sections
2.3 and 4.5, and the published implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..whisper.tokenizer import Tokenizer

__all__ = ["ApplyTimestampRules", "LogitFilter", "SuppressBlank", "SuppressTokens"]

_BARRED = float("-inf")


class LogitFilter(Protocol):
    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        """Bars tokens in place: their ``logits`` [R, V] become -inf.

        ``tokens`` [R, T] are all tokens so far, the initial ones among them.
        """
        ...


class SuppressBlank:
    """The first sampled token is neither a lone space nor the end of the text."""

    def __init__(self, tokenizer: Tokenizer, sample_begin: int) -> None:
        self._barred = [*tokenizer.encode(" "), tokenizer.eot]
        self._sample_begin = sample_begin

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        if tokens.shape[1] == self._sample_begin:
            logits[:, self._barred] = _BARRED


class SuppressTokens:
    """Some tokens never come."""

    def __init__(self, suppressed: Sequence[int]) -> None:
        self._suppressed = torch.tensor(list(suppressed), dtype=torch.int64)

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        if self._suppressed.device != logits.device:
            self._suppressed = self._suppressed.to(logits.device)
        logits.index_fill_(1, self._suppressed, _BARRED)


class ApplyTimestampRules:
    """What holds for timestamps. All rows are at the same place; each has its own past.

    1. ``<|notimestamps|>`` never comes: that mode is chosen by the prompt.
    2. They come in pairs, the end of one segment and the start of the next, except that the last
       may stand alone before the end of the text.
    3. They never decrease, and no segment has length zero.
    4. The first token is one, and not later than ``max_initial_index`` (in token frames).
    5. When all of them together are likelier than the likeliest other token, one of them comes.
    """

    def __init__(
        self, tokenizer: Tokenizer, sample_begin: int, max_initial_index: int | None
    ) -> None:
        self._begin = tokenizer.timestamp_begin
        self._eot = tokenizer.eot
        self._no_timestamps = tokenizer.no_timestamps
        self._sample_begin = sample_begin
        self._max_initial_index = max_initial_index

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        logits[:, self._no_timestamps] = _BARRED
        sampled = tokens[:, self._sample_begin :]
        if sampled.shape[1] == 0:
            self._bar_at_start(logits)
        else:
            for row, past in zip(logits, sampled.tolist(), strict=True):
                self._bar_by_past(row, past)
        self._force_if_likelier(logits)

    def _bar_at_start(self, logits: Tensor) -> None:
        logits[:, : self._begin] = _BARRED
        if self._max_initial_index is not None:
            logits[:, self._begin + self._max_initial_index + 1 :] = _BARRED

    def _bar_by_past(self, logits: Tensor, past: list[int]) -> None:
        """``logits``: [V] of one row; ``past``: what it has sampled so far, at least one token."""
        last = past[-1] >= self._begin
        before = len(past) < 2 or past[-2] >= self._begin
        if last and before:  # a segment was just opened: text has to come
            logits[self._begin :] = _BARRED
            return
        closes = last and not before
        if closes:  # its pair or the end has to come
            logits[: self._eot] = _BARRED
        latest = next((token for token in reversed(past) if token >= self._begin), None)
        if latest is not None:
            # only the pair of a closing timestamp may repeat it
            logits[self._begin : latest + (not closes)] = _BARRED

    def _force_if_likelier(self, logits: Tensor) -> None:
        # before the softmax, whose common denominator changes neither side
        timestamps = logits[:, self._begin :].float().logsumexp(dim=-1)  # [R]
        likeliest_other = logits[:, : self._begin].float().amax(dim=-1)  # [R]
        for row, forced in enumerate((timestamps > likeliest_other).tolist()):
            if forced:
                logits[row, : self._begin] = _BARRED
