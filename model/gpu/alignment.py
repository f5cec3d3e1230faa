"""Token times of many rows at once, from the queries that were kept of their tokens and the audio these saw.

The same as ``align.py`` does for one row (which is the reference), with rows of any length side by side: one
pass of softmax, normalisation, median filter and warping for all of them. Letters: B rows, T tokens of the
longest, h alignment heads, F audio positions of the longest, d channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..align import MEDIAN_WIDTH, SECONDS_PER_FRAME, alignment_cost, attended_times, token_times
from .caches import SlotCaches
from .columns import columns, fetch, send, words
from .triton_fallback import try_kernel

__all__ = ["RowTimes", "Span", "align_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The tokens of one row that are to be timed, and the audio that it saw."""

    text_slot: int
    audio_slot: int
    start: int  # place of ``<|startoftranscript|>``
    end: int  # place after the last token
    frames: int  # audio positions that hold the audio itself
    positions: int  # that the row saw of its window
    silence: int  # positions of silence that it saw after that


_SPAN = np.dtype([(field.name, np.int32) for field in fields(Span)])


@dataclass(frozen=True, slots=True, eq=False)
class RowTimes:
    """The times of the tokens of a ``Span``, but for the first ``skip``: seconds from the start of the window."""

    starts: NDArray[np.float64]
    attended: NDArray[np.float64]  # where each looks most


def align_rows(
    caches: SlotCaches,
    spans: Sequence[Span],
    *,
    skip: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[RowTimes]:
    """Return the times of every row.

    Args:
        skip: tokens at the start of each row that count in the normalisation but have no times.
        meanwhile: see ``fetch``.
    """
    if caches.queries.is_cuda:
        answer = _together(caches, spans, skip, meanwhile)
        if answer is not None:
            return answer
    return [_alone(caches, span, skip) for span in spans]


def _alone(caches: SlotCaches, span: Span, skip: int) -> RowTimes:
    queries = caches.queries[span.text_slot, span.start : span.end]  # [T, h, d]
    keys = caches.aligned_keys(torch.tensor([span.audio_slot]), span.positions)[0]  # [h, F, d]
    if span.silence:
        keys = torch.cat([keys, caches.silent_keys()], dim=1)
    scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * queries.shape[-1] ** -0.5
    return RowTimes(
        token_times(alignment_cost(scores, span.frames, skip=skip)),
        attended_times(scores[:, skip:]),
    )


def _together(
    caches: SlotCaches, spans: Sequence[Span], skip: int, meanwhile: Callable[[], None]
) -> list[RowTimes] | None:
    """Time every row in one pass on the GPU; None where Triton cannot run."""
    device = caches.queries.device
    rows = np.array([astuple(span) for span in spans], _SPAN)
    sent = columns(send(words(rows).T, device).T, _SPAN)
    start, end, frames = sent["start"], sent["end"], sent["frames"]
    tokens = int((rows["end"] - rows["start"]).max())
    places = start[:, None] + torch.arange(tokens, device=device)  # [B, T]
    places = places.clamp(max=caches.queries.shape[1] - 1)
    queries = caches.queries[sent["text_slot"][:, None].long(), places.long()]  # [B, T, h, d]
    # [B, h, F, d]
    keys = caches.aligned_keys(sent["audio_slot"].long(), int(rows["positions"].max()))
    own = keys.shape[2]
    scale = queries.shape[-1] ** -0.5
    queries = queries.transpose(1, 2)  # [B, h, T, d]
    scores = (queries @ keys.transpose(2, 3) * scale).float()  # [B, h, T, F]
    column = torch.arange(own, device=device)
    attended = scores.masked_fill((column >= sent["positions"][:, None])[:, None, None], -torch.inf)
    if rows["silence"].any():
        silent = (queries @ caches.silent_keys()[None].transpose(2, 3) * scale).float()
        silent = silent.masked_fill((sent["silence"] == 0)[:, None, None, None], -torch.inf)
        attended = torch.cat([attended, silent], dim=-1)
    looked = attended.softmax(dim=-1).mean(dim=1).argmax(dim=-1)  # [B, T]
    widest = int(rows["frames"].max())
    cost = _costs(scores[..., :widest].contiguous(), end - start, frames)
    if cost is None:
        return None
    cost = cost[:, skip:].contiguous()
    starts = try_kernel("triton_dtw", "row_starts", cost, end - start - skip, frames)
    if starts is None:
        return None
    numbers = fetch(torch.stack([starts, looked[:, skip:].int()]), meanwhile)
    answer = numbers * SECONDS_PER_FRAME
    counts = rows["end"] - rows["start"] - skip
    return [
        RowTimes(answer[0, row, :count], answer[1, row, :count]) for row, count in enumerate(counts)
    ]


def _costs(scores: Tensor, tokens: Tensor, frames: Tensor) -> Tensor | None:
    """Return the cost [B, T, F] of ``scores`` [B, h, T, F]; None where Triton cannot run.

    Args:
        tokens, frames: [B], rows and columns of each matrix that count.
    """
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
