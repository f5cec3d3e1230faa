"""The decoder passes of a batch: rows are opened, go on step by step, and end. See ``batch_backend``.

Runs the decode jobs of many streams together on one GPU: rows join and leave between decoder steps.

A job passes through these stages; every stage takes all rows that have come to it, in one batch:

    admit: audio ─► encoder ─► its slot     open: language, prompt and draft in one pass
    step: a few tokens each, as often as it takes; beams beside them
    close: the attention of the last token     align: word times of the rows that are done

The result of a job does not depend on what is decoded beside it (but for the rounding of sums), and is
that of ``WhisperBackend``. Used from one thread only; the words of a result are made by whoever calls the
``Outcome``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch

from ...model.gpu.alignment import RowTimes, Span, align_rows
from ...model.gpu.caches import slot_bytes
from ...model.gpu.decoder import Choices, Feed, SlotDecoder
from ...model.gpu.encoder import EncoderRun, PackedEncoder
from ...model.gpu.kernels import SlotKernels
from ...model.media.audio import N_SAMPLES_PER_TOKEN
from ...model.whisper.network import Whisper
from ...model.whisper.tokenizer import Tokenizer
from ..config import SAMPLE_RATE
from ..jobs import DecodeJob, DecodeResult
from .backend import BackendConfig, ContextMode
from .fallback import Ladder, in_language
from .gpu_row import BatchRow, Outcome
from .token_rules import doubts_language, make_rules, pick_language, tokenizer_for
from .window_encoder import padded_samples, silence_states

__all__ = ["BatchBackend", "BatchPasses", "Outcome", "fitting_slots"]

K = TypeVar("K", bound=Hashable)

_PREFILL_TOKENS = 16_384  # run at once, padding included


class BatchPasses(Generic[K]):
    """Rows come in by ``new`` and go out by ``done``. ``texts``: slots for the beams of searches."""

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig,
        tokenizer: Tokenizer,
        decoder: SlotDecoder,
        texts: Sequence[int],
    ) -> None:
        self.model = model
        self.config = config
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._texts = tuple(texts)
        self._eot = tokenizer.eot
        self.passes = 0  # of the decoder
        self.rows_run = 0  # rows of all passes
        self.reset()

    def reset(self) -> None:
        """Forgets all rows."""
        self.new: list[BatchRow[K]] = []  # their audio is encoded
        self.done: list[BatchRow[K]] = []  # their text is known
        self.running = 0  # rows of the last step
        self._free_texts = list(self._texts)
        self._active: list[BatchRow[K]] = []
        self._beamed: list[BatchRow[K]] = []
        self._closing: list[BatchRow[K]] = []

    @property
    def going(self) -> bool:
        """Whether there are rows to go on with."""
        return bool(self.new or self._active or self._beamed or self._closing)

    def advance(self) -> None:
        """One pass over the rows that wait for one."""
        if self.new:
            self._open()
        elif self.going:
            self._step()

    def _open(self) -> None:
        """Languages, then the first pass of new tries."""
        rows, self.new = self.new, []
        self._learn_languages([row for row in rows if row.tokenizer is None])
        able = len(self._free_texts) // max(1, self.config.final_beams - 1)
        beamed = [row for row in rows if row.wants_beams][:able]
        greedy = [row for row in rows if row not in beamed]
        for row in rows:
            row.begin(self._eot, self.model.dims.n_text_ctx, beams=row in beamed)
        fed = [(row, row.current.feed()) for row in greedy]
        fed.sort(key=lambda pair: len(pair[1]))  # rows of like length are padded least
        for part in _parts([len(tokens) for _, tokens in fed]):
            self._prefill(fed[part])
        if beamed:
            self._open_beams(beamed)

    def _prefill(self, fed: Sequence[tuple[BatchRow[K], list[int]]]) -> None:
        feeds = [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=tokens,
                start=0,
                first=len(row.current.initial) - 1,
                opening=not row.job.prefix,
                temperature=row.temperature,
                seed=self._seed(row),
                sot=row.sot,
            )
            for row, tokens in fed
        ]
        answers = self._count(self._decoder.prefill(feeds))
        for (row, _), choices in zip(fed, answers, strict=True):
            row.no_speech_prob = choices.no_speech_prob or 0.0
            self._take(row, choices)

    def _step(self) -> None:
        rows, self._active = self._active, []
        closing, self._closing = self._closing, []
        feeds = [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=row.current.feed(self._decoder.widest),
                start=row.current.start,
                temperature=row.temperature,
                seed=self._seed(row),
            )
            for row in rows
        ]
        # the last token was chosen but never fed: alignment wants its queries, to end the last word
        feeds += [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=[row.current.tokens[-1]],
                start=row.current.length - 1,
            )
            for row in closing
        ]
        beamed, self._beamed = self._beamed, []
        beams = [
            Feed(text=text, window=row.slot, tokens=[token], start=row.beams.length)
            for row in beamed
            if row.beams is not None
            for text, token in zip(row.beam_texts, row.beams.last, strict=True)
        ]
        self.running = len(feeds) + len(beams)
        chosen, ranked = self._decoder.step(feeds, beams)
        self._count([*chosen, *ranked])
        for row, choices in zip(rows, chosen, strict=False):
            self._take(row, choices)
        self.done += closing
        if beamed:
            rankings = iter(ranked)
            self._spread(beamed, [[next(rankings) for _ in row.beam_texts] for row in beamed])

    def _take(self, row: BatchRow[K], choices: Choices) -> None:
        greedy = row.current
        greedy.take(choices.tokens, choices.logprobs)
        if not greedy.done:
            self._active.append(row)
            return
        if not row.conclude():
            self.new.append(row)
            return
        assert row.taken is not None
        if row.initials[row.taken][0] is not greedy.initial:
            # an earlier one is taken: its attention was overwritten by later ones
            self._judge([row])
            return
        row.end = greedy.length
        (self._closing if greedy.tokens and not greedy.ended else self.done).append(row)

    # Beams

    def _open_beams(self, rows: Sequence[BatchRow[K]]) -> None:
        feeds = []
        for row in rows:
            assert row.beams is not None
            row.beam_texts = [row.slot, *self._free_texts[: self.config.final_beams - 1]]
            del self._free_texts[: self.config.final_beams - 1]
            feeds.append(
                Feed(
                    text=row.slot,
                    window=row.slot,
                    tokens=row.beams.initial,
                    start=0,
                    opening=not row.job.prefix,
                )
            )
        self._spread(rows, [[ranking] for ranking in self._count(self._decoder.open_beams(feeds))])

    def _spread(self, rows: Sequence[BatchRow[K]], rankings: Sequence[Sequence[Choices]]) -> None:
        """Beams go on from where the likeliest came from; rows whose search has ended are judged."""
        sources: list[int] = []
        targets: list[int] = []
        length = 0
        ended: list[BatchRow[K]] = []
        for row, ranking in zip(rows, rankings, strict=True):
            assert row.beams is not None
            origins = row.beams.take(
                [list(zip(one.tokens, one.logprobs, strict=True)) for one in ranking]
            )
            if row.beams.done:
                self._free_texts += row.beam_texts[1:]
                ended.append(row)
                continue
            self._beamed.append(row)
            length = max(length, row.beams.length)
            for text, origin in zip(row.beam_texts, origins, strict=True):
                if text != row.beam_texts[origin]:
                    sources.append(row.beam_texts[origin])
                    targets.append(text)
        if sources:
            self._decoder.caches.copy_text(sources, targets, length)
        if ended:
            self._judge(ended)

    def _judge(self, rows: Sequence[BatchRow[K]]) -> None:
        """One pass over a text that is known: how likely it is, and what it attends to."""
        feeds: list[Feed] = []
        texts: list[list[int]] = []
        for row in rows:
            if row.taken is not None:
                (initial, row.sot), text = row.initials[row.taken], list(row.taken.tokens)
            else:
                assert row.beams is not None
                initial, text = row.beams.initial, row.beams.best()
            texts.append(text)
            row.end = len(initial) + len(text)
            feeds.append(
                Feed(
                    text=row.slot,
                    window=row.slot,
                    tokens=[*initial, *text],
                    start=0,
                    first=len(initial) - 1,
                    opening=bool(text) and not row.job.prefix,
                    sot=row.sot,
                    expected=[*text, self._eot],
                )
            )
        answers: list[Choices] = []
        for part in _parts([len(feed.tokens) for feed in feeds]):
            answers += self._count(self._decoder.prefill(feeds[part]))
        for row, text, choices in zip(rows, texts, answers, strict=True):
            if row.taken is None:
                row.no_speech_prob = choices.no_speech_prob or 0.0
                if not row.conclude_beams(text, choices.logprobs):
                    self.new.append(row)
                    continue
            self.done.append(row)

    # Inside

    def _count(self, answers: list[Choices]) -> list[Choices]:
        self.passes += 1
        self.rows_run += len(answers)
        return answers

    def _learn_languages(self, rows: Sequence[BatchRow[K]]) -> None:
        doubted = [row for row in rows if doubts_language(row.job, self.model)]
        if doubted:
            logits = self._decoder.language_logits(
                [(row.slot, row.slot) for row in doubted], self._tokenizer.sot
            ).cpu()
            for row, one in zip(doubted, logits, strict=True):
                row.language, row.probability = pick_language(row.job, self._tokenizer, one)
                row.job = in_language(row.job, row.language)
                row.ladder = Ladder(row.job, self.config)
        for row in rows:
            if row.probability is None:
                row.language = row.job.language or "en"
            row.tokenizer = tokenizer_for(self.model, row.language, row.job.task)

    def _seed(self, row: BatchRow[K]) -> int:
        """Of sampling: another at every place, and the same whatever is decoded beside it."""
        return self.config.seed + row.current.length


def _parts(lengths: Sequence[int]) -> list[slice]:
    """Which rows of ``lengths`` tokens are run together."""
    parts: list[slice] = []
    begin, width = 0, 0
    for row, length in enumerate(lengths):
        width = max(width, length)
        if row > begin and width * (row + 1 - begin) > _PREFILL_TOKENS:
            parts.append(slice(begin, row))
            begin, width = row, length
    if begin < len(lengths):
        parts.append(slice(begin, len(lengths)))
    return parts


_FEWEST_SLOTS, _MOST_SLOTS = 4, 128
_SLOT_SHARE = 0.4  # of the memory that is free
_ALIGNED_AT_ONCE = 16  # rows that are done wait for as many, unless nothing else goes on
_WAVE_WORK = 4e13  # floating-point operations encoded at once
_SLICE_WORK = 2e12  # and of them, between two decoder passes of many rows
_FEW = 64  # rows; fewer can wait longer
# Decoder passes between two waves so small that they are encoded at once: each costs the host as much as a few
# passes, for which those that are being decoded would wait.
_BETWEEN = 4


class BatchBackend(Generic[K]):
    """``slots``: jobs in flight at once. ``searches``: beam searches at once; an endpoint that finds them all
    taken is decoded greedily: when so many sentences end together, all of them wait for each. For the same
    reason no more than ``whole_at_once`` windows of a wave are encoded with the context of endpoints.
    ``graphs``, ``kernels``: see ``SlotDecoder``.
    """

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig | None = None,
        *,
        slots: int = 64,
        searches: int = 8,
        whole_at_once: int = 2,
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        self.model = model
        self.config = config or BackendConfig()
        self._tokenizer = tokenizer_for(model, None, "transcribe")
        rules = make_rules(model, self._tokenizer)
        barred = rules.suppressed.repeat(2, 1)
        barred[1, list(rules.blank)] = -torch.inf
        beams = self.config.final_beams
        # each beam but the first, which has the slot of its row
        spare = (beams - 1) * searches
        with torch.inference_mode(), self._on_device():
            silence = silence_states(model)
            self._encoder = PackedEncoder(model, kernels)
            self._decoder = SlotDecoder(
                model,
                windows=slots,
                texts=slots + spare,
                barred=barred,
                no_speech=rules.no_speech,
                silence=[(k[0], v[0]) for k, v in zip(silence.k, silence.v, strict=True)],
                beams=beams,
                graphs=graphs,
                kernels=kernels,
            )
        self._decoder.meanwhile = self._encode_on
        self.passes: BatchPasses[K] = self._make_passes(range(slots, slots + spare))
        self._slots = slots
        self._whole_at_once = whole_at_once
        self._reset()

    def _make_passes(self, texts: Sequence[int]) -> BatchPasses[K]:
        return BatchPasses(self.model, self.config, self._tokenizer, self._decoder, texts)

    def _reset(self) -> None:
        self.passes.reset()
        self._free = list(range(self._slots))
        self._rows: dict[int, BatchRow[K]] = {}  # by slot
        self._encoding: tuple[EncoderRun, list[BatchRow[K]]] | None = None
        self._rest = 0  # passes until the next wave

    def _on_device(self) -> AbstractContextManager[object]:
        """Kernels, graphs and events go to the current GPU, which each thread has its own of."""
        device = self.model.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def idle(self) -> bool:
        return len(self._free) == self._slots

    @property
    def occupied(self) -> float:
        return 1.0 - len(self._free) / self._slots

    @property
    def room(self) -> int:
        """Jobs that ``admit`` takes now: none while others are being encoded, or have only just been."""
        if self._encoding is not None or (self._rest > 0 and self.passes.going):
            return 0
        return len(self._free)

    @property
    def wave_seconds(self) -> float:
        """Of audio encoded at once: about 90 ms of work for a large GPU."""
        # a second is 50 positions
        return max(60.0, _WAVE_WORK / (50 * self._layer_work * self.model.dims.n_audio_layer))

    @property
    def _layer_work(self) -> int:
        """Of an encoder layer, for each position: matrices of 12 D^2 numbers, a product and a sum each."""
        return 24 * self.model.dims.n_audio_state**2

    def warm_up(self) -> None:
        """Compiles and captures, so that no user waits for that."""
        with torch.inference_mode(), self._on_device():
            self._decoder.warm_up()
        noise = np.random.default_rng(0).normal(0.0, 0.01, 3 * SAMPLE_RATE).astype(np.float32)
        job = DecodeJob(audio=noise, language="en")
        # first passes of all widths that kernels are compiled for, of one row and of several, endpoints
        for tokens in (1, 10, 20, 100):
            drafted = replace(job, draft=(1,) * tokens)
            self.decode([drafted])
            self.decode([drafted, replace(drafted, audio=noise[:SAMPLE_RATE])])
        self.decode([replace(job, endpoint=True), job])

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order. Only while nothing else is admitted."""
        numbers: BatchBackend[int] = self  # type: ignore[assignment]
        waiting = list(enumerate(jobs))
        results: dict[int, DecodeResult] = {}
        while len(results) < len(jobs):
            room = numbers.room
            numbers.admit(waiting[:room])
            del waiting[:room]
            for number, outcome in numbers.advance():
                results[number] = outcome()
        return [results[number] for number in range(len(jobs))]

    def admit(self, jobs: Sequence[tuple[K, DecodeJob]]) -> None:
        """Begins to encode the audio of at most ``room`` jobs. Where that fails, none of them was taken."""
        if jobs:
            with torch.inference_mode(), self._on_device():
                self._admit(jobs)

    def _admit(self, jobs: Sequence[tuple[K, DecodeJob]]) -> None:
        rows: list[BatchRow[K]] = []
        whole = self._whole_at_once
        for (key, job), slot in zip(jobs, self._free[: len(jobs)], strict=True):
            context = self.config.update_context
            if job.endpoint and not job.hurried and whole > 0:
                context = self.config.final_context
                whole -= 1
            rows.append(self._seat(key, job, slot, context))
        lengths = [row.positions * N_SAMPLES_PER_TOKEN for row in rows]
        self._encoding = self._encoder.start([row.job.audio for row in rows], lengths), rows
        self._rows.update((row.slot, row) for row in rows)
        del self._free[: len(rows)]

    def advance(self) -> list[tuple[K, Outcome]]:
        """Runs one decoder pass over the rows that wait for one -> the jobs that are done by then."""
        with torch.inference_mode(), self._on_device():
            return self._advance()

    def _advance(self) -> list[tuple[K, Outcome]]:
        passes = self.passes
        if self._encoding is not None and (self._encoding[0].done or not passes.going):
            run, rows = self._encoding
            windows = [(row.slot, row.positions, row.tail > 0) for row in rows]
            self._decoder.caches.enter(run.finish(), windows)
            passes.new += rows
            self._encoding = None
            work = run.positions * self._layer_work * self.model.dims.n_audio_layer
            self._rest = _BETWEEN if work < _SLICE_WORK else 0
        else:
            self._rest -= 1
        passes.advance()
        if not passes.done or (passes.going and len(passes.done) < _ALIGNED_AT_ONCE):
            return []
        return self._align()

    def _encode_on(self) -> None:
        """A few layers more of the next windows: the device has work while the host looks at answers.

        The fewer rows are decoded meanwhile, the more.
        """
        if self._encoding is None:
            return
        run = self._encoding[0]
        work = _SLICE_WORK * max(1.0, _FEW / max(1, self.passes.running))
        run.advance(max(1, round(work / (run.positions * self._layer_work))))

    def abandon(self) -> list[K]:
        """After a failure: forgets all jobs, and says which they were."""
        keys = [row.key for row in self._rows.values()]
        self._reset()
        return keys

    # Stages

    def _seat(self, key: K, job: DecodeJob, slot: int, context: ContextMode) -> BatchRow[K]:
        positions = padded_samples(len(job.audio), context) // N_SAMPLES_PER_TOKEN
        whole = positions >= self.model.dims.n_audio_ctx
        return BatchRow(
            key=key,
            job=job,
            slot=slot,
            frames=min(-(-len(job.audio) // N_SAMPLES_PER_TOKEN), positions),
            positions=positions,
            tail=0 if whole else self._decoder.caches.tail,
            ladder=Ladder(job, self.config),
            config=self.config,
        )

    # The end

    def _align(self) -> list[tuple[K, Outcome]]:
        rows, self.passes.done = self.passes.done, []
        spoken = [row for row in rows if row.taken is not None and row.taken.tokens]
        spans = [
            Span(
                text=row.slot,
                window=row.slot,
                first=row.sot,
                end=row.end,
                frames=row.frames,
                positions=row.positions,
                tail=row.tail,
            )
            for row in spoken
        ]
        skip = len(self._tokenizer.sot_sequence)
        times: list[RowTimes] = []
        if spans:
            times = align_rows(self._decoder.caches, spans, skip=skip, meanwhile=self._encode_on)
        found = {row.slot: one for row, one in zip(spoken, times, strict=True)}
        for row in rows:
            del self._rows[row.slot]
            self._free.append(row.slot)
        return [(row.key, row.outcome(found.get(row.slot))) for row in rows]


def fitting_slots(model: Whisper, free_bytes: int) -> int:
    """How many jobs in flight suit a GPU with so much memory free: its work wants some as well."""
    own = slot_bytes(model.dims, model.dtype.itemsize)
    return max(_FEWEST_SLOTS, min(_MOST_SLOTS, round(free_bytes * _SLOT_SHARE) // own))
