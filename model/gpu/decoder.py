"""The decoder's layers over rows in slots. Letters: R rows, W tokens of each, N = R * W, D state, V vocabulary.

The decoder over many rows at once, each of its own length: any number in, choices out.

A row is a sequence that is being decoded; its tokens lie in a text slot, the audio it hears in a window
slot (see ``slot_caches``). Letters: R rows, W tokens of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder, Whisper
from .caches import SPARE, SlotCaches, fetch, send
from .graphs import StepGraphs
from .kernels import PlainKernels, SlotKernels, make_kernels

__all__ = ["Choices", "Feed", "SlotDecoder", "SlotNetwork"]


class SlotNetwork:
    """Nothing here waits for the device, or takes memory of a size that the numbers decide: it can be captured."""

    def __init__(self, model: Whisper, caches: SlotCaches, kernels: SlotKernels) -> None:
        decoder = model.decoder
        assert isinstance(decoder, TextDecoder), "the compute type must leave the decoder plain"
        self._decoder = decoder
        self._caches = caches
        self._kernels = kernels
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        self._context = model.dims.n_text_ctx
        self._heads = model.dims.n_text_head

    def __call__(self, tokens: Tensor, positions: Tensor, texts: Tensor, windows: Tensor) -> Tensor:
        """``tokens`` and ``positions`` [R, W], their text slots and those of their audio [R], all int32.

        Returns hidden states [R, W, D]; the caches are written, and the queries of the alignment heads.
        """
        kernels, decoder, caches = self._kernels, self._decoder, self._caches
        rows, width = tokens.shape
        places = positions.clamp(max=self._context - 1)
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[places]
        own = texts.repeat_interleave(width)  # [N]
        flat = positions.reshape(-1)
        lengths, tails = caches.lengths[windows], caches.tails[windows]
        at = 0  # of the alignment heads
        normed = kernels.add_norm(x, None, self._blocks[0].attn_ln)
        for layer, block in enumerate(self._blocks):
            parts = block.attn_qkv(normed).view(rows * width, 3, self._heads, -1)
            q, k, v = parts.unbind(1)
            kernels.store(k, v, caches.text_k[layer], caches.text_v[layer], own, flat)
            q = q.view(rows, width, self._heads, -1)
            seen = kernels.attend_text(
                q, caches.text_k[layer], caches.text_v[layer], texts, positions
            )
            normed = kernels.add_norm(x, block.attn_out(seen), block.cross_ln)
            q = block.cross_query(normed).view(rows, width, self._heads, -1)
            if layer in caches.chosen:
                heads = caches.chosen[layer]
                kept = q.flatten(0, 1)[:, heads]
                caches.queries[own.long(), flat.long(), at : at + len(heads)] = kept
                at += len(heads)
            tail = (*caches.silence[layer], tails) if caches.silence else None
            heard = kernels.attend_audio(
                q, caches.audio_k[layer], caches.audio_v[layer], windows, lengths, tail
            )
            normed = kernels.add_norm(x, block.cross_out(heard), block.mlp_ln)
            grown = kernels.gelu(block.mlp_in(normed))
            after = self._blocks[layer + 1].attn_ln if layer + 1 < len(self._blocks) else decoder.ln
            normed = kernels.add_norm(x, block.mlp_out(grown), after)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, D] -> logits [N, V], in the weights' own precision"""
        out: Tensor = self._decoder.projection(hidden)
        return out

    def ranked(self, hidden: Tensor, barred: Tensor, count: int) -> Tensor:
        """The ``count`` likeliest tokens after hidden states [N, D]: [2, N, count] int32, the second half
        being the bits of their log-probabilities in float32. ``barred`` [N, V] or [V] is added."""
        logits = self.logits(hidden).float() + barred
        best = logits.topk(count, dim=-1)
        logprobs = best.values - logits.logsumexp(dim=-1, keepdim=True)
        return torch.stack([best.indices.int(), logprobs.view(torch.int32)])


_WIDTHS = (1, 4)  # tokens a row may feed in a step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feed:
    """What one row runs next: ``tokens`` at places from ``start`` on. Choices are wanted after every token
    from the one at ``first`` on."""

    text: int  # its slot
    window: int  # the slot of its audio
    tokens: Sequence[int]
    start: int
    first: int = 0  # index in ``tokens``
    opening: bool = (
        False  # the choice after ``first`` is the first token of a text, which is not blank
    )
    temperature: float = 0.0
    seed: int = 0
    sot: int | None = None  # index in ``tokens`` at which the chance of no speech is read
    expected: Sequence[int] | None = None  # what is chosen, whatever is likely


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The answer to one ``Feed``."""

    tokens: list[int]
    logprobs: list[float]
    no_speech_prob: float | None = None


class SlotDecoder:
    """``windows`` and ``texts``: slots of each. ``barred`` [2, V] float32 is added to all logits: its second
    row to those of the first token of a text. ``beams``: of a search. ``silence``: see ``SlotCaches``.

    ``graphs``: whether steps are captured on CUDA; the plain loop gives the same.
    """

    def __init__(
        self,
        model: Whisper,
        *,
        windows: int,
        texts: int,
        barred: Tensor,
        no_speech: int,
        silence: Sequence[tuple[Tensor, Tensor]],
        beams: int = 1,
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        self._kernels = kernels or make_kernels(model.device)
        self.caches = SlotCaches(
            model, self._kernels, windows=windows, texts=texts, silence=silence
        )
        self._network = SlotNetwork(model, self.caches, self._kernels)
        self._device = model.device
        self._barred = barred
        self._no_speech = no_speech
        self._count = beams + 1  # ranked after each row: one may end the text
        self._places = model.dims.n_text_ctx + SPARE
        # called while a pass is waited for; see ``fetch``
        self.meanwhile: Callable[[], None] = lambda: None
        self._steps: dict[int, StepGraphs] = {}
        self._ranks: StepGraphs | None = None
        # the plain kernels look at numbers on the host, which a graph cannot
        capturable = not isinstance(self._kernels, PlainKernels)
        if graphs and capturable and model.device.type == "cuda":
            pool = torch.cuda.graph_pool_handle()
            for width in _WIDTHS:
                self._steps[width] = StepGraphs(
                    lambda numbers, width=width: self._choose(numbers, width),  # type: ignore[misc]
                    self._padding(width),
                    windows,
                    pool,
                )
            if beams > 1:
                self._ranks = StepGraphs(self._rank, self._padding(1), texts, pool)

    @property
    def widest(self) -> int:
        """The most tokens that a row may feed in a step."""
        return _WIDTHS[-1]

    def warm_up(self) -> None:
        """Captures the steps of all sizes, so that nobody waits for that."""
        for graphs in (*self._steps.values(), self._ranks):
            if graphs is not None:
                graphs.capture_all()

    def graph(self, rows: int) -> torch.cuda.CUDAGraph:
        """The captured step of ``rows`` rows of one token."""
        return self._steps[1].graph(rows)

    def step(
        self, feeds: Sequence[Feed], beams: Sequence[Feed] = ()
    ) -> tuple[list[Choices], list[Choices]]:
        """Runs rows of a few tokens each (at most ``widest``), and rows of ``beams``, of one token each.

        Returns what is chosen after each token; and for beams, the likeliest next tokens of each, one more
        than there are beams.
        """
        width = 1 if all(len(feed.tokens) == 1 for feed in feeds) else self.widest
        answers: list[Tensor] = []
        if feeds:
            numbers = self._numbers(feeds, width)
            if self._steps:
                answers.append(self._steps[width](numbers))
            else:
                answers.append(self._choose(send(numbers, self._device), width))
        if beams:
            numbers = self._numbers(beams, 1)
            if self._ranks is not None:
                answers.append(self._ranks(numbers))
            else:
                answers.append(self._rank(send(numbers, self._device)))
        # one copy, and one wait
        flat = fetch(
            torch.cat([answer.reshape(2, -1) for answer in answers], dim=1), self.meanwhile
        )
        own = answers[0].numel() // 2 if feeds else 0
        chosen = _chosen(flat[:, :own], feeds, width) if feeds else []
        ranked = _ranked(flat[:, own:].reshape(2, -1, self._count), len(beams)) if beams else []
        return chosen, ranked

    def open_beams(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Runs new rows in one pass -> the likeliest tokens after the last of each, as for beams in ``step``."""
        hidden = self._pass(feeds)
        last = send(np.array([len(feed.tokens) - 1 for feed in feeds], np.int32), self._device)
        opens = send(np.array([feed.opening for feed in feeds], np.int32), self._device)
        rows = torch.arange(len(feeds), device=self._device)
        ranked = self._network.ranked(
            hidden[rows, last.long()], self._barred[opens.long()], self._count
        )
        return _ranked(fetch(ranked, self.meanwhile), len(feeds))

    def prefill(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Runs rows of any length in one pass, padded to the longest."""
        hidden = self._pass(feeds)  # [R, W, D]
        width = hidden.shape[1]
        flat = hidden.flatten(0, 1)
        table = send(np.array(_picks(feeds, width), np.int32).T, self._device)
        tokens, logprobs = self._kernels.choose(
            self._network.logits(flat[table[0].long()]),
            self._barred,
            table[1],
            table[2].view(torch.float32),
            table[3],
            table[4],
        )
        asked = [row * width + feed.sot for row, feed in enumerate(feeds) if feed.sot is not None]
        silent = torch.zeros(0, device=self._device)
        if asked:
            places = send(np.array(asked, np.int32), self._device)
            scores = self._network.logits(flat[places.long()]).float()
            silent = (scores[:, self._no_speech] - scores.logsumexp(dim=-1)).exp()
        answer = torch.cat([tokens, logprobs.view(torch.int32), silent.view(torch.int32)])
        return _read(feeds, fetch(answer, self.meanwhile))

    def language_logits(self, slots: Sequence[tuple[int, int]], sot: int) -> Tensor:
        """What follows ``<|startoftranscript|>`` alone in text and window ``slots``: logits [R, V], float32"""
        hidden = self._pass(
            [Feed(text=text, window=window, tokens=[sot], start=0) for text, window in slots]
        )
        return self._network.logits(hidden[:, 0]).float()

    # Inside

    def _pass(self, feeds: Sequence[Feed]) -> Tensor:
        """Hidden states [R, W, D] of ``feeds``, padded to the longest."""
        width = max(len(feed.tokens) for feed in feeds)
        if width > self.widest:
            width += -width % 8  # few shapes
        return self._run(send(self._numbers(feeds, width), self._device), width)

    def _numbers(self, feeds: Sequence[Feed], width: int) -> NDArray[np.int32]:
        """A row for each: tokens and positions [width each], slots, temperature (its bits), seed."""
        table = np.zeros((len(feeds), 2 * width + 4), np.int32)
        if width == 1:
            table[:, 0] = [feed.tokens[0] for feed in feeds]
        else:
            for row, feed in enumerate(feeds):
                table[row, : len(feed.tokens)] = feed.tokens
        starts = np.array([feed.start for feed in feeds], np.int32)
        places = starts[:, None] + np.arange(width, dtype=np.int32)
        table[:, width : 2 * width] = np.minimum(places, self._places - 1)
        table[:, 2 * width] = [feed.text for feed in feeds]
        table[:, 2 * width + 1] = [feed.window for feed in feeds]
        heat = np.array([feed.temperature for feed in feeds], np.float32)
        table[:, 2 * width + 2] = heat.view(np.int32)
        table[:, 2 * width + 3] = [feed.seed for feed in feeds]
        return table

    def _padding(self, width: int) -> NDArray[np.int32]:
        """A row that is only there to fill up."""
        row = np.zeros(2 * width + 4, np.int32)
        row[2 * width : 2 * width + 2] = self.caches.texts, self.caches.windows
        return row

    def _run(self, numbers: Tensor, width: int) -> Tensor:
        return self._network(
            numbers[:, :width].contiguous(),
            numbers[:, width : 2 * width].contiguous(),
            numbers[:, 2 * width].contiguous(),
            numbers[:, 2 * width + 1].contiguous(),
        )

    def _choose(self, numbers: Tensor, width: int) -> Tensor:
        """One step, from numbers on the device to numbers on the device: [2, R * W] int32."""
        rows = numbers.shape[0]
        hidden = self._run(numbers, width)
        heat = numbers[:, 2 * width + 2].contiguous().view(torch.float32)
        none = torch.zeros(rows * width, dtype=torch.int32, device=self._device)
        tokens, logprobs = self._kernels.choose(
            self._network.logits(hidden.flatten(0, 1)),
            self._barred,
            none,
            heat.repeat_interleave(width),
            numbers[:, 2 * width + 3].repeat_interleave(width),
            none - 1,
        )
        return torch.stack([tokens, logprobs.view(torch.int32)])

    def _rank(self, numbers: Tensor) -> Tensor:
        """As ``_choose``, for beams: [2, R, beams + 1]"""
        return self._network.ranked(self._run(numbers, 1)[:, 0], self._barred[0], self._count)


def _picks(feeds: Sequence[Feed], width: int) -> list[tuple[int, int, int, int, int]]:
    """Where choices are made: place among [R * W], whether it opens, temperature bits, seed, what is expected."""
    picks: list[tuple[int, int, int, int, int]] = []
    for row, feed in enumerate(feeds):
        heat = int(np.float32(feed.temperature).view(np.int32))
        for at in range(feed.first, len(feed.tokens)):
            new = at - feed.first
            wanted = -1 if feed.expected is None else feed.expected[new]
            opening = int(feed.opening and new == 0)
            picks.append((row * width + at, opening, heat, feed.seed, wanted))
    return picks


def _read(feeds: Sequence[Feed], answer: NDArray[np.int32]) -> list[Choices]:
    counts = [len(feed.tokens) - feed.first for feed in feeds]
    total = sum(counts)
    tokens, rest = answer[:total].tolist(), answer[total:].view(np.float32).tolist()
    silent = iter(rest[total:])
    out: list[Choices] = []
    at = 0
    for feed, count in zip(feeds, counts, strict=True):
        span = slice(at, at + count)
        chance = next(silent) if feed.sot is not None else None
        out.append(Choices(tokens[span], rest[span], chance))
        at += count
    return out


def _chosen(answer: NDArray[np.int32], feeds: Sequence[Feed], width: int) -> list[Choices]:
    tokens = answer[0].reshape(-1, width).tolist()
    logprobs = answer[1].view(np.float32).reshape(-1, width).tolist()
    counts = [len(feed.tokens) for feed in feeds]
    return [Choices(tokens[row][:n], logprobs[row][:n]) for row, n in enumerate(counts)]


def _ranked(answer: NDArray[np.int32], rows: int) -> list[Choices]:
    tokens, logprobs = answer[0].tolist(), answer[1].view(np.float32).tolist()
    return [Choices(tokens[row], logprobs[row]) for row in range(rows)]
