"""The decoder over many rows at once, each of its own length: any number of rows in, choices out.

A row is a sequence that is being decoded; its tokens lie in a text slot, the audio it hears in an audio slot
(see ``caches.py``). Letters: B rows, T tokens of each, N = B * T, D state, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder, Whisper
from .caches import SPARE, SlotCaches
from .columns import columns, fetch, send, words
from .graphs import StepGraphs
from .kernels import PlainKernels, SlotKernels, make_kernels

__all__ = ["Choices", "Feed", "SlotDecoder", "SlotNetwork"]


class SlotNetwork:
    """The decoder's layers over rows in slots.

    Nothing here waits for the device, or takes memory of a size that the numbers decide: it can be captured.
    """

    def __init__(self, model: Whisper, caches: SlotCaches, kernels: SlotKernels) -> None:
        decoder = model.decoder
        assert isinstance(decoder, TextDecoder), "the compute type must leave the decoder plain"
        self._decoder = decoder
        self._caches = caches
        self._kernels = kernels
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        self._context = model.dims.n_text_ctx
        self._heads = model.dims.n_text_head

    def __call__(
        self, tokens: Tensor, positions: Tensor, text_slots: Tensor, audio_slots: Tensor
    ) -> Tensor:
        """Run ``tokens`` at ``positions`` [B, T] of rows in ``text_slots`` and ``audio_slots`` [B], all int32.

        Returns:
            Hidden states [B, T, D]. The caches are written, and the queries of the alignment heads.
        """
        kernels, decoder, caches = self._kernels, self._decoder, self._caches
        rows, width = tokens.shape
        places = positions.clamp(max=self._context - 1)
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[places]
        own = text_slots.repeat_interleave(width)  # [N]
        flat = positions.reshape(-1)
        lengths, silence = caches.lengths[audio_slots], caches.silence_lengths[audio_slots]
        at = 0  # among the alignment heads
        normed = kernels.add_norm(x, None, self._blocks[0].attn_ln)
        for layer, block in enumerate(self._blocks):
            parts = block.attn_qkv(normed).view(rows * width, 3, self._heads, -1)
            q, k, v = parts.unbind(1)
            kernels.store(k, v, caches.text_k[layer], caches.text_v[layer], own, flat)
            q = q.view(rows, width, self._heads, -1)
            seen = kernels.attend_text(
                q, caches.text_k[layer], caches.text_v[layer], text_slots, positions
            )
            normed = kernels.add_norm(x, block.attn_out(seen), block.cross_ln)
            q = block.cross_query(normed).view(rows, width, self._heads, -1)
            if layer in caches.alignment_heads:
                heads = caches.alignment_heads[layer]
                kept = q.flatten(0, 1)[:, heads]
                caches.queries[own.long(), flat.long(), at : at + len(heads)] = kept
                at += len(heads)
            tail = (*caches.silence[layer], silence) if caches.silence else None
            heard = kernels.attend_audio(
                q, caches.audio_k[layer], caches.audio_v[layer], audio_slots, lengths, tail
            )
            normed = kernels.add_norm(x, block.cross_out(heard), block.mlp_ln)
            grown = kernels.gelu(block.mlp_in(normed))
            after = self._blocks[layer + 1].attn_ln if layer + 1 < len(self._blocks) else decoder.ln
            normed = kernels.add_norm(x, block.mlp_out(grown), after)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [N, V] of hidden states [N, D], in the weights' own precision."""
        out: Tensor = self._decoder.projection(hidden)
        return out

    def rank(self, hidden: Tensor, barred: Tensor, count: int) -> Tensor:
        """Return the ``count`` likeliest tokens after hidden states [N, D], as [2, N, count] int32.

        The second half has the bits of their log-probabilities in float32. ``barred`` [N, V] or [V] is added.
        """
        logits = self.logits(hidden).float() + barred
        best = logits.topk(count, dim=-1)
        logprobs = best.values - logits.logsumexp(dim=-1, keepdim=True)
        return torch.stack([best.indices.int(), logprobs.view(torch.int32)])


_WIDTHS = (1, 4)  # tokens a row may feed in a step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feed:
    """The tokens that one row runs next, at places from ``start`` on."""

    text_slot: int
    audio_slot: int
    tokens: Sequence[int]
    start: int
    first_choice: int = (
        0  # index in ``tokens``: choices are made after it, and after all that follow
    )
    begins_text: bool = False  # the first choice is the first token of a text, which is not blank
    temperature: float = 0.0
    seed: int = 0
    sot_index: int | None = None  # index in ``tokens`` at which the chance of no speech is read
    expected: Sequence[int] | None = None  # the tokens to choose, however likely


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The answer to one ``Feed``: a token after each of those fed, or the likeliest ones after the last."""

    tokens: list[int]
    logprobs: list[float]
    no_speech_prob: float | None = None


@cache
def _row(width: int) -> np.dtype[Any]:
    """Return a row of a step's table, for ``width`` tokens."""
    return np.dtype(
        [
            ("tokens", np.int32, (width,)),
            ("positions", np.int32, (width,)),
            ("text_slot", np.int32),
            ("audio_slot", np.int32),
            ("temperature", np.float32),
            ("seed", np.int32),
        ]
    )


# A place at which a prefill chooses a token
_CHOICE = np.dtype(
    [
        ("place", np.int32),  # among [B * T]
        ("begins_text", np.int32),
        ("temperature", np.float32),
        ("seed", np.int32),
        ("expected", np.int32),  # token, or -1
    ]
)


class SlotDecoder:
    """Runs the decoder over rows in slots, and chooses their next tokens.

    Args:
        audio_slots: windows in flight at once.
        text_slots: texts in flight at once.
        barred: [2, V] float32, added to all logits; its second row to those of the first token of a text.
        no_speech: the token whose chance after ``<|startoftranscript|>`` is reported.
        silence: see ``SlotCaches``.
        beams: of a search.
        graphs: whether steps are captured on CUDA; the plain loop gives the same.
        kernels: None takes the best there are.

    Attributes:
        meanwhile: called while a pass is waited for; see ``fetch``.
    """

    def __init__(
        self,
        model: Whisper,
        *,
        audio_slots: int,
        text_slots: int,
        barred: Tensor,
        no_speech: int,
        silence: Sequence[tuple[Tensor, Tensor]],
        beams: int = 1,
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        self._kernels = kernels or make_kernels(model.device)
        self.caches = SlotCaches(
            model, self._kernels, audio_slots=audio_slots, text_slots=text_slots, silence=silence
        )
        self.meanwhile: Callable[[], None] = lambda: None
        self._network = SlotNetwork(model, self.caches, self._kernels)
        self._device = model.device
        self._barred = barred
        self._no_speech = no_speech
        self._ranked = beams + 1  # tokens after each beam: one may end the text
        self._places = model.dims.n_text_ctx + SPARE
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
                    audio_slots,
                    pool,
                )
            if beams > 1:
                self._ranks = StepGraphs(self._rank, self._padding(1), text_slots, pool)

    @property
    def widest(self) -> int:
        """Tokens that a row may feed in a step, at most."""
        return _WIDTHS[-1]

    def warm_up(self) -> None:
        """Capture the steps of all sizes, so that nobody waits for that."""
        for graphs in (*self._steps.values(), self._ranks):
            if graphs is not None:
                graphs.capture_all()

    def graph(self, rows: int) -> torch.cuda.CUDAGraph:
        """Return the captured step of ``rows`` rows of one token."""
        return self._steps[1].graph(rows)

    def step(
        self, feeds: Sequence[Feed], beams: Sequence[Feed] = ()
    ) -> tuple[list[Choices], list[Choices]]:
        """Run rows of a few tokens each (at most ``widest``), and the rows of ``beams``, of one token each.

        Returns:
            The choice after each token; and the likeliest next tokens of each beam, one more than a search
            has beams.
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
        chosen = _read_step(flat[:, :own], feeds, width) if feeds else []
        ranked = _read_ranks(flat[:, own:].reshape(2, -1, self._ranked), len(beams))
        return chosen, ranked

    def prefill_beams(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Run new rows in one pass; return the likeliest tokens after the last of each, as ``step`` for beams."""
        hidden = self._pass(feeds)
        last = send(np.array([len(feed.tokens) - 1 for feed in feeds], np.int32), self._device)
        begins = send(np.array([feed.begins_text for feed in feeds], np.int32), self._device)
        rows = torch.arange(len(feeds), device=self._device)
        ranked = self._network.rank(
            hidden[rows, last.long()], self._barred[begins.long()], self._ranked
        )
        return _read_ranks(fetch(ranked, self.meanwhile), len(feeds))

    def prefill(self, feeds: Sequence[Feed]) -> list[Choices]:
        """Run rows of any length in one pass, padded to the longest; return the choices of each."""
        hidden = self._pass(feeds)  # [B, T, D]
        width = hidden.shape[1]
        flat = hidden.flatten(0, 1)
        choices = words(np.array(_choices(feeds, width), _CHOICE))
        table = columns(send(choices.T, self._device).T, _CHOICE)
        tokens, logprobs = self._kernels.choose(
            self._network.logits(flat[table["place"].long()]),
            self._barred,
            table["begins_text"],
            table["temperature"],
            table["seed"],
            table["expected"],
        )
        asked = [
            row * width + feed.sot_index
            for row, feed in enumerate(feeds)
            if feed.sot_index is not None
        ]
        silent = torch.zeros(0, device=self._device)
        if asked:
            places = send(np.array(asked, np.int32), self._device)
            scores = self._network.logits(flat[places.long()]).float()
            silent = (scores[:, self._no_speech] - scores.logsumexp(dim=-1)).exp()
        answer = torch.cat([tokens, logprobs.view(torch.int32), silent.view(torch.int32)])
        return _read_prefill(feeds, fetch(answer, self.meanwhile))

    def language_logits(self, slots: Sequence[tuple[int, int]], sot: int) -> Tensor:
        """Return the logits [B, V], float32, after ``<|startoftranscript|>`` alone.

        Args:
            slots: text slot and audio slot of each row.
            sot: that token.
        """
        hidden = self._pass(
            [
                Feed(text_slot=text_slot, audio_slot=audio_slot, tokens=[sot], start=0)
                for text_slot, audio_slot in slots
            ]
        )
        return self._network.logits(hidden[:, 0]).float()

    # Inside

    def _pass(self, feeds: Sequence[Feed]) -> Tensor:
        """Run ``feeds``, padded to the longest; return hidden states [B, T, D]."""
        width = max(len(feed.tokens) for feed in feeds)
        if width > self.widest:
            width += -width % 8  # few shapes
        return self._run(columns(send(self._numbers(feeds, width), self._device), _row(width)))

    def _numbers(self, feeds: Sequence[Feed], width: int) -> NDArray[np.int32]:
        """Return the table of a step [B, columns]: one row for each feed."""
        table = np.zeros(len(feeds), _row(width))
        tokens = table["tokens"]
        if width == 1:
            tokens[:, 0] = [feed.tokens[0] for feed in feeds]
        else:
            for row, feed in enumerate(feeds):
                tokens[row, : len(feed.tokens)] = feed.tokens
        starts = np.array([feed.start for feed in feeds], np.int32)
        places = starts[:, None] + np.arange(width, dtype=np.int32)
        table["positions"] = np.minimum(places, self._places - 1)
        table["text_slot"] = [feed.text_slot for feed in feeds]
        table["audio_slot"] = [feed.audio_slot for feed in feeds]
        table["temperature"] = [feed.temperature for feed in feeds]
        table["seed"] = [feed.seed for feed in feeds]
        return words(table)

    def _padding(self, width: int) -> NDArray[np.int32]:
        """Return a row that only fills up a table: it writes to slots that nobody reads."""
        row = np.zeros(1, _row(width))
        row["text_slot"] = self.caches.text_slots
        row["audio_slot"] = self.caches.audio_slots
        padding: NDArray[np.int32] = words(row)[0]
        return padding

    def _run(self, table: dict[str, Tensor]) -> Tensor:
        return self._network(
            table["tokens"].contiguous(),
            table["positions"].contiguous(),
            table["text_slot"].contiguous(),
            table["audio_slot"].contiguous(),
        )

    def _choose(self, numbers: Tensor, width: int) -> Tensor:
        """Run one step, from a table on the device to [2, B * T] int32 on the device."""
        table = columns(numbers, _row(width))
        hidden = self._run(table)
        none = torch.zeros(len(numbers) * width, dtype=torch.int32, device=self._device)
        tokens, logprobs = self._kernels.choose(
            self._network.logits(hidden.flatten(0, 1)),
            self._barred,
            none,
            table["temperature"].repeat_interleave(width),
            table["seed"].repeat_interleave(width),
            none - 1,
        )
        return torch.stack([tokens, logprobs.view(torch.int32)])

    def _rank(self, numbers: Tensor) -> Tensor:
        """Run one step of beams; as ``_choose``, but [2, B, beams + 1]."""
        hidden = self._run(columns(numbers, _row(1)))[:, 0]
        return self._network.rank(hidden, self._barred[0], self._ranked)


def _choices(feeds: Sequence[Feed], width: int) -> list[tuple[int, int, float, int, int]]:
    """Return a row of ``_CHOICE`` for every token that is chosen in a prefill."""
    found: list[tuple[int, int, float, int, int]] = []
    for row, feed in enumerate(feeds):
        for index in range(feed.first_choice, len(feed.tokens)):
            number = index - feed.first_choice
            expected = -1 if feed.expected is None else feed.expected[number]
            begins = int(feed.begins_text and number == 0)
            found.append((row * width + index, begins, feed.temperature, feed.seed, expected))
    return found


def _read_prefill(feeds: Sequence[Feed], answer: NDArray[np.int32]) -> list[Choices]:
    """Divide tokens, log-probabilities and chances of no speech, one behind the other, among ``feeds``."""
    counts = [len(feed.tokens) - feed.first_choice for feed in feeds]
    total = sum(counts)
    tokens, floats = answer[:total].tolist(), answer[total:].view(np.float32).tolist()
    silent = iter(floats[total:])
    out: list[Choices] = []
    at = 0
    for feed, count in zip(feeds, counts, strict=True):
        span = slice(at, at + count)
        chance = next(silent) if feed.sot_index is not None else None
        out.append(Choices(tokens[span], floats[span], chance))
        at += count
    return out


def _read_step(answer: NDArray[np.int32], feeds: Sequence[Feed], width: int) -> list[Choices]:
    """Divide the choices of a step [2, B * T] among ``feeds``."""
    tokens = answer[0].reshape(-1, width).tolist()
    logprobs = answer[1].view(np.float32).reshape(-1, width).tolist()
    counts = [len(feed.tokens) for feed in feeds]
    return [Choices(tokens[row][:n], logprobs[row][:n]) for row, n in enumerate(counts)]


def _read_ranks(answer: NDArray[np.int32], rows: int) -> list[Choices]:
    """Return the ranked tokens of the first ``rows`` of [2, B, count]."""
    tokens, logprobs = answer[0].tolist(), answer[1].view(np.float32).tolist()
    return [Choices(tokens[row], logprobs[row]) for row in range(rows)]
