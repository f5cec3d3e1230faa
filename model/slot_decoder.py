"""The decoder over many rows at once, each of its own length: caches in slots, steps as CUDA graphs.

A row is a sequence that is being decoded. Its tokens' keys and values lie in a slot of their own, so rows
come and go without moving each other. Letters: R rows, W tokens of each, N = R * W, H heads, d channels
of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .layers import DecoderBlock
from .slot_kernels import SlotKernels, make_kernels
from .whisper import TextDecoder, Whisper

__all__ = ["Choices", "Feed", "SlotDecoder"]

_SPARE = 64  # places of a slot beyond the decoder's context: what a padded row writes lies there
_WIDTHS = (1, 4)  # tokens a row may feed in a step
_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)  # of a captured step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feed:
    """What one row runs next: ``tokens`` at places from ``start`` on. Choices are wanted after every token
    from the one at ``first`` on."""

    slot: int
    tokens: Sequence[int]
    start: int
    first: int = 0  # index in ``tokens``
    opening: bool = (
        False  # the choice after ``first`` is the first token of a text, which is not blank
    )
    temperature: float = 0.0
    seed: int = 0
    sot: int | None = None  # index in ``tokens`` at which the chance of no speech is read


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The answer to one ``Feed``."""

    tokens: list[int]
    logprobs: list[float]
    no_speech_prob: float | None


@dataclass(slots=True, eq=False)
class _Graph:
    inputs: Tensor  # [R, 2 * W + 3] int32 on the device
    outputs: Tensor  # [2, R * W] int32
    host_in: Tensor  # pinned
    host_out: Tensor
    graph: torch.cuda.CUDAGraph


class SlotDecoder:
    """``slots`` sequences may be in flight. ``barred`` [2, V] float32 is added to all logits: its second row
    to those of the first token of a text. ``silence``: per layer, keys and values [H, T, d] that follow
    the audio of rows that are not full windows.

    ``graphs``: whether steps are captured on CUDA; the plain loop gives the same.
    """

    def __init__(
        self,
        model: Whisper,
        *,
        slots: int,
        barred: Tensor,
        no_speech: int,
        silence: Sequence[tuple[Tensor, Tensor]],
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        decoder = model.decoder
        assert isinstance(decoder, TextDecoder), "the compute type must leave the decoder plain"
        self._decoder = decoder
        self._kernels = kernels or make_kernels(model.device)
        self._device = model.device
        self._no_speech = no_speech
        self._barred = barred
        dims = model.dims
        self.slots = slots
        self.context = dims.n_text_ctx
        heads, size = dims.n_text_head, dims.n_text_state // dims.n_text_head
        self._heads, self._size = heads, size
        dtype = decoder.positional_embedding.dtype

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=model.device, dtype=kind)

        rows = slots + 1  # the last one takes what padding writes
        text = (dims.n_text_layer, rows, heads, self.context + _SPARE, size)
        audio = (dims.n_text_layer, rows, heads, dims.n_audio_ctx, size)
        self._k, self._v = zeros(*text), zeros(*text)
        self.audio_k, self.audio_v = zeros(*audio), zeros(*audio)
        self._lengths = zeros(rows, kind=torch.int32) + 1  # of the audio
        self._tails = zeros(rows, kind=torch.int32)  # of silence after it
        self._silence = [(k.contiguous(), v.contiguous()) for k, v in silence]
        self.tail = self._silence[0][0].shape[1] if self._silence else 0
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        # the alignment heads' queries of every token, from which word times are read
        self.heads = model.heads_by_layer
        aligned = sum(len(chosen) for chosen in self.heads.values())
        self.queries = zeros(rows, self.context + _SPARE, aligned, size)
        self._chosen = {
            layer: torch.tensor(chosen, device=model.device) for layer, chosen in self.heads.items()
        }
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._pool: Any = None  # the memory that all graphs share
        # a step without a graph gives the same, and is what graphs are compared with
        self.capturing = graphs and model.device.type == "cuda"

    # Audio

    def enter(self, features: Tensor, windows: Sequence[tuple[int, int, bool]]) -> None:
        """Enters encoder output ``features`` [P, D] of windows that lie one behind the other.

        ``windows``: slot, number of positions, and whether silence follows.
        """
        count = features.shape[0]
        slots = np.repeat([slot for slot, _, _ in windows], [size for _, size, _ in windows])
        positions = np.concatenate([np.arange(size) for _, size, _ in windows])
        where = self._send(np.stack([slots, positions]).astype(np.int32))
        for layer, block in enumerate(self._blocks):
            k, v = block.cross_kv(features).view(count, 2, self._heads, self._size).unbind(1)
            self._kernels.store(k, v, self.audio_k[layer], self.audio_v[layer], where[0], where[1])
        table = self._send(np.array(windows, np.int32))  # [windows, 3]
        rows = table[:, 0].long()
        self._lengths[rows] = table[:, 1]
        self._tails[rows] = table[:, 2] * self.tail

    # Decoding

    def prefill(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Runs rows of any length in one pass, padded to the longest."""
        width = max(len(feed.tokens) for feed in feeds)
        if width > self.widest:
            width += -width % 8  # few shapes
        hidden = self._run(*self._tables(feeds, len(feeds), width))  # [R, W, D]
        flat = hidden.reshape(-1, hidden.shape[-1])
        picks = [
            row * width + at
            for row, feed in enumerate(feeds)
            for at in range(feed.first, len(feed.tokens))
        ]
        counts = [len(feed.tokens) - feed.first for feed in feeds]
        opens = np.zeros(len(picks), np.int32)
        opens[np.cumsum([0, *counts[:-1]])] = [feed.opening for feed in feeds]
        repeated = [
            (feed.temperature, feed.seed)
            for feed, n in zip(feeds, counts, strict=True)
            for _ in range(n)
        ]
        heat = np.array([one for one, _ in repeated], np.float32)
        seeds = np.array([one for _, one in repeated], np.int32)
        table = self._send(np.stack([np.array(picks, np.int32), opens, heat.view(np.int32), seeds]))
        logits = self._decoder.projection(flat[table[0].long()])  # [picks, V]
        tokens, logprobs = self._kernels.choose(
            logits, self._barred, table[1], table[2].view(torch.float32), table[3]
        )
        asked = [(row, feed.sot) for row, feed in enumerate(feeds) if feed.sot is not None]
        silent = torch.zeros(0, device=self._device)
        if asked:
            places = self._send(np.array([row * width + sot for row, sot in asked], np.int32))
            scores = self._decoder.projection(flat[places.long()]).float()
            silent = (scores[:, self._no_speech] - scores.logsumexp(dim=-1)).exp()
        answer = torch.cat([tokens, logprobs.view(torch.int32), silent.view(torch.int32)])
        return _read(feeds, counts, asked, answer.cpu().numpy())

    def step(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Runs rows of a few tokens each (at most ``widest``)."""
        width = 1 if all(len(feed.tokens) == 1 for feed in feeds) else _WIDTHS[-1]
        if not self.capturing:
            return self.prefill(feeds)
        rows = next((size for size in _ROWS if size >= len(feeds)), None)
        if rows is None or rows > self.slots:
            rows = max(self.slots, len(feeds))
        graph = self._graphs.get((rows, width)) or self._capture(rows, width)
        tokens, positions, slots = self._numbers(feeds, rows, width)
        table = graph.host_in.numpy()
        table[:, :width] = tokens
        table[:, width : 2 * width] = positions
        table[:, 2 * width] = slots
        table[:, 2 * width + 1] = np.array(
            [feed.temperature for feed in feeds] + [0.0] * (rows - len(feeds)), np.float32
        ).view(np.int32)
        table[: len(feeds), 2 * width + 2] = [feed.seed for feed in feeds]
        graph.inputs.copy_(graph.host_in, non_blocking=True)
        graph.graph.replay()
        graph.host_out.copy_(graph.outputs, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        chosen = graph.host_out[0].numpy().reshape(rows, width)
        logprobs = graph.host_out[1].numpy().view(np.float32).reshape(rows, width)
        return [
            Choices(
                chosen[row, : len(feed.tokens)].tolist(),
                logprobs[row, : len(feed.tokens)].tolist(),
                None,
            )
            for row, feed in enumerate(feeds)
        ]

    def graph(self, rows: int, width: int) -> torch.cuda.CUDAGraph:
        """The captured step of ``rows`` rows of ``width`` tokens."""
        return (self._graphs.get((rows, width)) or self._capture(rows, width)).graph

    @property
    def widest(self) -> int:
        """The most tokens that a row may feed in a step."""
        return _WIDTHS[-1]

    def warm_up(self) -> None:
        """Captures the steps of all sizes, so that nobody waits for that."""
        if self.capturing:
            for rows in [size for size in _ROWS if size < self.slots] + [self.slots]:
                for width in _WIDTHS:
                    if (rows, width) not in self._graphs:
                        self._capture(rows, width)

    def language_logits(self, slots: Sequence[int], sot: int) -> Tensor:
        """What follows ``<|startoftranscript|>`` alone: logits [R, V] in float32."""
        feeds = [Feed(slot=slot, tokens=[sot], start=0) for slot in slots]
        hidden = self._run(*self._tables(feeds, len(feeds), 1))
        logits: Tensor = self._decoder.projection(hidden[:, 0])
        return logits.float()

    # What alignment reads

    def aligned_keys(self, slots: Tensor, positions: int) -> Tensor:
        """The alignment heads' keys of the first ``positions`` of ``slots`` [F] -> [F, h, S, d]"""
        return torch.cat(
            [
                self.audio_k[layer, :, :, :positions][slots[:, None], chosen]
                for layer, chosen in self._chosen.items()
            ],
            dim=1,
        )

    def silent_keys(self) -> Tensor:
        """Those of the silence after the audio: [h, T, d]"""
        return torch.cat([self._silence[layer][0][chosen] for layer, chosen in self.heads.items()])

    # Inside

    def _run(self, tokens: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """``tokens`` and ``positions`` [R, W], ``slots`` [R], all int32 -> hidden states [R, W, D]"""
        kernels, decoder = self._kernels, self._decoder
        rows, width = tokens.shape
        places = positions.clamp(max=self.context - 1)
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[places]
        own = slots[:, None].expand(rows, width).reshape(-1)  # [N]
        flat = positions.reshape(-1)
        lengths, tails = self._lengths[slots], self._tails[slots]
        at = 0  # of the alignment heads
        normed = kernels.add_norm(x, None, self._blocks[0].attn_ln)
        for layer, block in enumerate(self._blocks):
            parts = block.attn_qkv(normed).view(rows * width, 3, self._heads, self._size)
            q, k, v = parts.unbind(1)
            kernels.store(k, v, self._k[layer], self._v[layer], own, flat)
            q = q.view(rows, width, self._heads, self._size)
            seen = kernels.attend_text(q, self._k[layer], self._v[layer], slots, positions)
            normed = kernels.add_norm(x, block.attn_out(seen), block.cross_ln)
            q = block.cross_query(normed).view(rows, width, self._heads, self._size)
            if layer in self._chosen:
                count = len(self.heads[layer])
                kept = q.reshape(-1, self._heads, self._size)[:, self._chosen[layer]]
                self.queries[own.long(), flat.long(), at : at + count] = kept
                at += count
            tail = (*self._silence[layer], tails) if self._silence else None
            heard = kernels.attend_audio(
                q, self.audio_k[layer], self.audio_v[layer], slots, lengths, tail
            )
            normed = kernels.add_norm(x, block.cross_out(heard), block.mlp_ln)
            grown = kernels.gelu(block.mlp_in(normed))
            after = self._blocks[layer + 1].attn_ln if layer + 1 < len(self._blocks) else decoder.ln
            normed = kernels.add_norm(x, block.mlp_out(grown), after)
        return normed

    def _numbers(
        self, feeds: Sequence[Feed], rows: int, width: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Tokens and positions [rows, width], and slots [rows], of ``feeds`` and what pads them."""
        tokens = np.zeros((rows, width), np.int32)
        slots = np.full(rows, self.slots, np.int32)
        starts = np.zeros((rows, 1), np.int32)
        for row, feed in enumerate(feeds):
            tokens[row, : len(feed.tokens)] = feed.tokens
            slots[row] = feed.slot
            starts[row] = feed.start
        positions = starts + np.arange(width, dtype=np.int32)
        return tokens, np.minimum(positions, self.context + _SPARE - 1), slots

    def _tables(
        self, feeds: Sequence[Feed], rows: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, positions, slots = self._numbers(feeds, rows, width)
        sent = self._send(np.concatenate([tokens, positions, slots[:, None]], axis=1))
        return (
            sent[:, :width].contiguous(),
            sent[:, width : 2 * width].contiguous(),
            sent[:, 2 * width].contiguous(),
        )

    def _send(self, numbers: NDArray[np.int32]) -> Tensor:
        table = torch.from_numpy(numbers)
        if self._device.type != "cuda":
            return table
        return table.pin_memory().to(self._device, non_blocking=True)

    def _capture(self, rows: int, width: int) -> _Graph:
        columns = 2 * width + 3
        inputs = torch.zeros((rows, columns), dtype=torch.int32, device=self._device)
        inputs[:, 2 * width] = self.slots  # the row that pads
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._captured(inputs, width)  # compiles the kernels, and gets the libraries ready
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = self._captured(inputs, width)
        self._pool = self._pool or graph.pool()
        made = _Graph(
            inputs,
            outputs,
            inputs.cpu().pin_memory(),
            torch.empty(outputs.shape, dtype=torch.int32, pin_memory=True),
            graph,
        )
        self._graphs[rows, width] = made
        return made

    def _captured(self, inputs: Tensor, width: int) -> Tensor:
        """One step, from numbers on the device to numbers on the device: [2, R * W] int32."""
        rows = inputs.shape[0]
        hidden = self._run(
            inputs[:, :width].contiguous(),
            inputs[:, width : 2 * width].contiguous(),
            inputs[:, 2 * width].contiguous(),
        )
        logits = self._decoder.projection(hidden.reshape(rows * width, -1))
        heat = inputs[:, 2 * width + 1].contiguous().view(torch.float32)
        seeds = inputs[:, 2 * width + 2].contiguous()
        tokens, logprobs = self._kernels.choose(
            logits,
            self._barred,
            torch.zeros(rows * width, dtype=torch.int32, device=self._device),
            heat.repeat_interleave(width),
            seeds.repeat_interleave(width),
        )
        return torch.stack([tokens, logprobs.view(torch.int32)])


def _read(
    feeds: Sequence[Feed],
    counts: Sequence[int],
    asked: Sequence[tuple[int, int]],
    answer: NDArray[np.int32],
) -> list[Choices]:
    total = sum(counts)
    tokens, rest = answer[:total], answer[total:].view(np.float32)
    silent = dict(zip((row for row, _ in asked), rest[total:].tolist(), strict=True))
    out: list[Choices] = []
    at = 0
    for row, count in enumerate(counts):
        span = slice(at, at + count)
        out.append(Choices(tokens[span].tolist(), rest[span].tolist(), silent.get(row)))
        at += count
    return out
