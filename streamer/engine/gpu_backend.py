"""The jobs of many streams on one GPU, as rows of one batch: continuous batching.

    admit: the audio of new jobs is encoded, between the decoder passes of the others
    step: one pass of the running batch (``running_batch.py``), then the word times of the rows that have finished

The result of a job does not depend on the jobs beside it (but for the rounding of sums), and is that of
``CpuBackend``.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch

from ...model.gpu.alignment import RowTimes, Span, align_rows
from ...model.gpu.caches import slot_bytes
from ...model.gpu.decoder import SlotDecoder
from ...model.gpu.encoder import EncoderRun, PackedEncoder
from ...model.gpu.kernels import SlotKernels
from ...model.media.audio import N_SAMPLES_PER_TOKEN
from ...model.whisper.network import Whisper
from ...model.whisper.tokenizer import Tokenizer
from ..config import SAMPLE_RATE
from ..jobs import DecodeJob, DecodeResult
from .backend import BackendConfig, BusyRule, ContextMode, Outcome, Room
from .fallback import FallbackState
from .gpu_row import GpuRow
from .running_batch import RunningBatch
from .scheduler import QueuedJob
from .token_rules import make_rules, tokenizer_for
from .window_encoder import padded_samples, silence_states

__all__ = ["GpuBackend", "fitting_slots"]

_FEWEST_SLOTS, _MOST_SLOTS = 4, 128
_SLOT_SHARE = 0.4  # of the memory that is free
_ALIGNED_AT_ONCE = 16  # finished rows wait until there are 16, unless nothing else goes on
_WAVE_WORK = 4e13  # floating-point operations of the audio that is admitted at once
_SLICE_WORK = 2e12  # and of them, between two decoder passes of many rows
_FEW_ROWS = 64  # in a step; fewer can wait longer
# Decoder passes between two waves so small that they are encoded at once: each costs the host as much as a few
# passes, for which those that are being decoded would wait.
_PASSES_BETWEEN = 4


class GpuBackend:
    """Decodes many jobs at once with ``model``. Used from one thread only.

    Args:
        slots: jobs in flight at once.
        searches: beam searches at once. An endpoint that finds them all taken is decoded greedily: when
            many sentences end together, all of them wait for each.
        whole_at_once: windows of those admitted together that are encoded with the context of endpoints,
            for the same reason.
        graphs, kernels: see ``SlotDecoder``.
    """

    # a crowd that has waited: a slow GPU with a few streams gives all of them the best there is
    busy_rule = BusyRule(taken=8, waited=0.05, beams=False)

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
        beams = self.config.endpoint_beams
        # each beam but the first, which has the slot of its row
        beam_slots = range(slots, slots + (beams - 1) * searches)
        with torch.inference_mode(), self._on_device():
            silence = silence_states(model)
            self._encoder = PackedEncoder(model, kernels)
            self._decoder = SlotDecoder(
                model,
                audio_slots=slots,
                text_slots=slots + len(beam_slots),
                barred=barred,
                no_speech=rules.no_speech,
                silence=[(k[0], v[0]) for k, v in zip(silence.k, silence.v, strict=True)],
                beams=beams,
                graphs=graphs,
                kernels=kernels,
            )
        self._decoder.meanwhile = self._encode_on
        self.batch = self._make_batch(beam_slots)
        self._slots = slots
        self._whole_at_once = whole_at_once
        self._reset()

    def _make_batch(self, beam_slots: Sequence[int]) -> RunningBatch:
        return RunningBatch(
            self.model, self.config, self.busy_rule, self._tokenizer, self._decoder, beam_slots
        )

    def _reset(self) -> None:
        self.batch.clear()
        self._free_slots = list(range(self._slots))
        self._rows: dict[int, GpuRow] = {}  # by slot
        self._encoding: tuple[EncoderRun, list[GpuRow]] | None = None
        self._passes_to_wait = 0  # until others are admitted

    def _on_device(self) -> AbstractContextManager[object]:
        """Kernels, graphs and events go to the current GPU, which each thread has its own of."""
        device = self.model.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def occupied(self) -> float:
        """The share of slots that jobs have."""
        return 1.0 - len(self._free_slots) / self._slots

    @property
    def room(self) -> Room:
        """None while others are being encoded, or have only just been. About 90 ms of work for a large GPU."""
        if self._encoding is not None or (self._passes_to_wait > 0 and not self.batch.idle):
            return Room(0)
        # a second is 50 positions
        work = 50 * self._layer_work * self.model.dims.n_audio_layer
        return Room(len(self._free_slots), max(60.0, _WAVE_WORK / work))

    @property
    def _layer_work(self) -> int:
        """Operations of an encoder layer for each position: matrices of 12 D^2 numbers, a product and a sum each."""
        return 24 * self.model.dims.n_audio_state**2

    def warm_up(self) -> None:
        """Compile and capture, so that no user waits for that."""
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
        """Run ``jobs`` without an engine; one result for each, in order. Only while no others are admitted."""
        entries = [QueuedJob(job, Future()) for job in jobs]
        waiting = list(entries)
        results: dict[QueuedJob, DecodeResult] = {}
        while len(results) < len(jobs):
            room = self.room.jobs
            self.admit(waiting[:room])
            del waiting[:room]
            results.update((entry, outcome()) for entry, outcome in self.step())
        return [results[entry] for entry in entries]

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        """Run ``job`` without an engine."""
        return self.decode([job])[0]

    def admit(self, jobs: Sequence[QueuedJob]) -> None:
        """Begin to encode the audio of jobs that fit in ``room``. Where that fails, none of them was taken."""
        if jobs:
            with torch.inference_mode(), self._on_device():
                self._admit(jobs)

    def step(self) -> list[tuple[QueuedJob, Outcome]]:
        """Run one decoder pass over the rows that wait for one; return the jobs that are finished by then."""
        with torch.inference_mode(), self._on_device():
            return self._step()

    def abandon(self) -> list[QueuedJob]:
        """Forget all jobs, after a step has failed; return them."""
        entries = [row.entry for row in self._rows.values()]
        self._reset()
        return entries

    def is_fatal(self, error: Exception) -> bool:
        """Return whether every call to the GPU fails after ``error`` (an illegal access, an assertion)."""
        # PyTorch before 2.8 has no such class
        return isinstance(error, getattr(torch, "AcceleratorError", ()))

    # Inside

    def _admit(self, jobs: Sequence[QueuedJob]) -> None:
        rows: list[GpuRow] = []
        whole = self._whole_at_once
        for entry, slot in zip(jobs, self._free_slots[: len(jobs)], strict=True):
            context = self.config.context(entry.job)
            if entry.job.endpoint and context == self.config.endpoint_context:
                if whole <= 0:
                    context = self.config.update_context
                whole -= 1
            rows.append(self._assign_slot(entry, slot, context))
        lengths = [row.positions * N_SAMPLES_PER_TOKEN for row in rows]
        self._encoding = self._encoder.start([row.job.audio for row in rows], lengths), rows
        self._rows.update((row.slot, row) for row in rows)
        del self._free_slots[: len(rows)]

    def _assign_slot(self, entry: QueuedJob, slot: int, context: ContextMode) -> GpuRow:
        job = entry.job
        positions = padded_samples(len(job.audio), context) // N_SAMPLES_PER_TOKEN
        whole = positions >= self.model.dims.n_audio_ctx
        return GpuRow(
            entry=entry,
            job=job,
            slot=slot,
            frames=min(-(-len(job.audio) // N_SAMPLES_PER_TOKEN), positions),
            positions=positions,
            silence=0 if whole else self._decoder.caches.silence_positions,
            fallback=FallbackState(job, self.config),
            config=self.config,
        )

    def _step(self) -> list[tuple[QueuedJob, Outcome]]:
        batch = self.batch
        if self._encoding is not None and (self._encoding[0].done or batch.idle):
            self._join(*self._encoding)
        else:
            self._passes_to_wait -= 1
        batch.step()
        if not batch.finished or (not batch.idle and batch.finished < _ALIGNED_AT_ONCE):
            return []
        return self._align()

    def _join(self, run: EncoderRun, rows: Sequence[GpuRow]) -> None:
        """Enter the audio of ``rows`` in their slots; they are decoded from now on."""
        windows = [(row.slot, row.positions, row.silence > 0) for row in rows]
        self._decoder.caches.enter(run.finish(), windows)
        self.batch.join(rows)
        self._encoding = None
        work = run.positions * self._layer_work * self.model.dims.n_audio_layer
        self._passes_to_wait = _PASSES_BETWEEN if work < _SLICE_WORK else 0

    def _encode_on(self) -> None:
        """Encode a few layers more of the jobs admitted: the device has work while the host looks at answers.

        The fewer rows are decoded meanwhile, the more layers.
        """
        if self._encoding is None:
            return
        run = self._encoding[0]
        work = _SLICE_WORK * max(1.0, _FEW_ROWS / max(1, self.batch.stepped))
        run.advance(max(1, round(work / (run.positions * self._layer_work))))

    def _align(self) -> list[tuple[QueuedJob, Outcome]]:
        """Time the words of the rows that have finished, and give up their slots."""
        rows = self.batch.take_finished()
        spoken = [row for row in rows if row.taken is not None and row.taken.tokens]
        spans = [
            Span(
                text_slot=row.slot,
                audio_slot=row.slot,
                start=row.sot_index,
                end=row.end,
                frames=row.frames,
                positions=row.positions,
                silence=row.silence,
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
            self._free_slots.append(row.slot)
        return [(row.entry, row.outcome(found.get(row.slot))) for row in rows]


def fitting_slots(model: Whisper, free_bytes: int) -> int:
    """Return the number of jobs in flight that suit a GPU with ``free_bytes`` of memory: its work wants some, too."""
    own = slot_bytes(model.dims, model.dtype.itemsize)
    return max(_FEWEST_SLOTS, min(_MOST_SLOTS, round(free_bytes * _SLOT_SHARE) // own))
