"""Token times of many rows at once, from the queries that were kept of their tokens and the audio these saw.

The same as ``align`` does for one row (which is the reference), with rows of any length side by side: one
pass of softmax, normalisation, median filter and warping for all of them. Letters: F rows, T tokens of the
longest, h alignment heads, S audio positions of the longest, d channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..align import MEDIAN_WIDTH, SECONDS_PER_FRAME, alignment_cost, attended_times, token_times
from .caches import SlotCaches, fetch, send
from .triton_fallback import try_kernel

__all__ = ["RowTimes", "Span", "align_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What is to be aligned of one row."""

    text: int  # its slot
    window: int  # the slot of its audio
    first: int  # place of ``<|startoftranscript|>``
    end: int  # place after the last token
    frames: int  # audio positions that hold the audio itself
    positions: int  # that the row saw of its window
    tail: int  # and of silence after it


@dataclass(frozen=True, slots=True, eq=False)
class RowTimes:
    """Seconds from the start of the window, of the tokens after the first ``skip`` of a ``Span``."""

    starts: NDArray[np.float64]
    attended: NDArray[np.float64]  # where each looks most


def align_rows(
    caches: SlotCaches,
    spans: Sequence[Span],
    *,
    skip: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[RowTimes]:
    """The times of every row; its first ``skip`` tokens count in the normalisation but have none.

    ``meanwhile``: see ``fetch``.
    """
    if caches.queries.is_cuda:
        answer = _together(caches, spans, skip, meanwhile)
        if answer is not None:
            return answer
    return [_alone(caches, span, skip) for span in spans]


def _alone(caches: SlotCaches, span: Span, skip: int) -> RowTimes:
    queries = caches.queries[span.text, span.first : span.end]  # [T, h, d]
    keys = caches.aligned_keys(torch.tensor([span.window]), span.positions)[0]  # [h, S, d]
    if span.tail:
        keys = torch.cat([keys, caches.silent_keys()], dim=1)
    scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * queries.shape[-1] ** -0.5
    return RowTimes(
        token_times(alignment_cost(scores, span.frames, skip=skip)),
        attended_times(scores[:, skip:]),
    )


def _together(
    caches: SlotCaches, spans: Sequence[Span], skip: int, meanwhile: Callable[[], None]
) -> list[RowTimes] | None:
    """Every row in one pass on the GPU; None where Triton cannot run."""
    device = caches.queries.device
    rows = np.array(
        [
            [one.text, one.window, one.first, one.end, one.frames, one.positions, one.tail]
            for one in spans
        ],
        np.int32,
    )
    sent = send(rows, device)
    texts, windows, first, end, frames, positions, tails = sent.T.contiguous()
    tokens = int((rows[:, 3] - rows[:, 2]).max())
    places = first[:, None] + torch.arange(tokens, device=device)  # [F, T]
    places = places.clamp(max=caches.queries.shape[1] - 1)
    queries = caches.queries[texts[:, None].long(), places.long()]  # [F, T, h, d]
    keys = caches.aligned_keys(windows.long(), int(rows[:, 5].max()))  # [F, h, S, d]
    own = keys.shape[2]
    scale = queries.shape[-1] ** -0.5
    queries = queries.transpose(1, 2)  # [F, h, T, d]
    scores = (queries @ keys.transpose(2, 3) * scale).float()  # [F, h, T, S]
    column = torch.arange(own, device=device)
    attended = scores.masked_fill((column >= positions[:, None])[:, None, None], -torch.inf)
    if rows[:, 6].any():
        silent = (queries @ caches.silent_keys()[None].transpose(2, 3) * scale).float()
        silent = silent.masked_fill((tails == 0)[:, None, None, None], -torch.inf)
        attended = torch.cat([attended, silent], dim=-1)
    looked = attended.softmax(dim=-1).mean(dim=1).argmax(dim=-1)  # [F, T]
    widest = int(rows[:, 4].max())
    cost = _costs(scores[..., :widest].contiguous(), end - first, frames)
    if cost is None:
        return None
    cost = cost[:, skip:].contiguous()
    starts = try_kernel("triton_dtw", "row_starts", cost, end - first - skip, frames)
    if starts is None:
        return None
    numbers = fetch(torch.stack([starts, looked[:, skip:].int()]), meanwhile)
    answer = numbers * SECONDS_PER_FRAME
    counts = rows[:, 3] - rows[:, 2] - skip
    return [
        RowTimes(answer[0, row, :count], answer[1, row, :count]) for row, count in enumerate(counts)
    ]


def _costs(scores: Tensor, tokens: Tensor, frames: Tensor) -> Tensor | None:
    """``scores`` [F, h, T, S], of which ``tokens`` [F] rows and ``frames`` [F] columns count -> [F, T, S]"""
    rows, heads, length, columns = scores.shape
    outside = torch.arange(columns, device=scores.device) >= frames[:, None]
    weights = scores.masked_fill(outside[:, None, None], -torch.inf).softmax(dim=-1)
    counted = (torch.arange(length, device=scores.device) < tokens[:, None])[:, None, :, None]
    share = tokens[:, None, None, None]
    mean = (weights * counted).sum(dim=2, keepdim=True) / share
    spread = ((weights - mean).square() * counted).sum(dim=2, keepdim=True) / share
    weights = (weights - mean) / spread.sqrt()
    lengths = frames[:, None].expand(rows, heads * length).reshape(-1).contiguous()
    smooth = try_kernel(
        "triton_median", "median_rows", weights.reshape(-1, columns), MEDIAN_WIDTH, lengths
    )
    return None if smooth is None else -smooth.reshape(scores.shape).mean(dim=1)
