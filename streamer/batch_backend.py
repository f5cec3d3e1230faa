"""Runs the decode jobs of many streams together on one GPU: rows join and leave between decoder steps.

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

from ..model.audio import N_SAMPLES_PER_TOKEN
from ..model.batch_align import RowTimes, Span, align_rows
from ..model.packed_encoder import EncoderRun, PackedEncoder
from ..model.slot_caches import slot_bytes
from ..model.slot_decoder import SlotDecoder
from ..model.slot_kernels import SlotKernels
from ..model.tokenizer import Tokenizer
from ..model.whisper import Whisper
from .attempts import Ladder
from .backend_config import BackendConfig, ContextMode
from .batch_passes import BatchPasses
from .batch_row import BatchRow, Outcome
from .config import SAMPLE_RATE
from .features import padded_samples, silence_states
from .jobs import DecodeJob, DecodeResult
from .rules import make_rules, tokenizer_for

__all__ = ["BatchBackend", "Outcome", "fitting_slots"]

K = TypeVar("K", bound=Hashable)

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
        self.decode([replace(job, final=True), job])

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
            if job.final and not job.hurried and whole > 0:
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
