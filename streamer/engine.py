"""The engine: jobs of all streams in, results out, on threads of its own that own the model."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from .config import DetectorName, StreamConfig
from .detectors import make_detector
from .errors import EngineClosedError
from .jobs import DecodeJob, DecodeResult
from .scheduler import JobQueue, QueuedJob
from .session import StreamSession, TextCodec
from .vad import SpeechDetector

__all__ = ["Backend", "EngineStatistics", "EngineThread", "RollingBackend", "open_engine"]

_log = logging.getLogger(__name__)


class Backend(Protocol):
    """What runs jobs. Called from one thread only."""

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order."""
        ...


class RollingBackend(Protocol):
    """What runs jobs that come and go between its passes. Called from one thread only, but for the
    outcomes: those may be called from any, and make the result."""

    @property
    def room(self) -> int:
        """Jobs it takes now."""
        ...

    @property
    def wave_seconds(self) -> float:
        """Of audio that it should be given at once, if jobs are not to wait long for their first pass."""
        ...

    @property
    def idle(self) -> bool:
        """Whether it has no jobs."""
        ...

    @property
    def occupied(self) -> float:
        """The share of its places that jobs have, 0 to 1."""
        ...

    def admit(self, jobs: Sequence[tuple[QueuedJob, DecodeJob]]) -> None:
        """Takes jobs, each with a name of its own. Where it fails, it took none."""
        ...

    def advance(self) -> list[tuple[QueuedJob, Callable[[], DecodeResult]]]:
        """Runs one pass -> what is done by then."""
        ...

    def abandon(self) -> list[QueuedJob]:
        """Gives up all jobs."""
        ...


class EngineStatistics(NamedTuple):
    queued: int  # jobs waiting
    running: int  # jobs being decoded
    done: int  # jobs decoded since the start
    failed: int
    audio_seconds: float  # of all windows decoded
    busy_seconds: float  # spent decoding, mean over the backends: a second a second is all there is; of
    # a batch, as much as its places were taken


_HURRY = 2  # jobs that wait for each backend, from which on endpoints make do with less
_SWITCH_SECONDS = 0.0005  # that a thread runs before others may
# PyTorch's name for an error after which every call to the GPU fails (an illegal access, an assertion)
_FATAL = frozenset({"AcceleratorError"})
_MOST_WORKERS = 4  # backends of one model on CPU


class EngineThread:
    """Runs every backend on a thread of its own. ``submit`` may be called from any thread.

    A stream has one job out at a time, so the queue is bounded by the number of streams.
    ``on_start`` is called on a backend's thread before it decodes, with how many are at work then;
    ``on_fatal`` after a failure that leaves a GPU unusable for this process: nothing can be decoded any more.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        codec: TextCodec,
        *,
        model_name: str,
        languages: tuple[str, ...] = (),
        max_batch: int = 1,
        make_detector: Callable[[DetectorName], SpeechDetector] = make_detector,
        on_start: Callable[[int], None] = lambda busy: None,
        clock: Callable[[], float],
        rolling: Sequence[RollingBackend] = (),
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        self.model_name = model_name
        self.languages = languages  # codes a stream may ask for; empty: English only
        self._on_start = on_start
        self._on_fatal = on_fatal
        self._codec = codec
        self._make_detector = make_detector
        self._clock = clock
        self._max_batch = max_batch
        self._condition = threading.Condition()
        self._queue = JobQueue()
        self._closed = False
        self._running = 0
        self._busy = 0  # threads at work
        self._done = 0
        self._failed = 0
        self._audio_seconds = 0.0
        self._busy_seconds = 0.0
        self._threads = [
            threading.Thread(
                target=self._run, args=[backend], name=f"decode-engine-{number}", daemon=True
            )
            for number, backend in enumerate(backends)
        ]
        self._threads += [
            threading.Thread(
                target=self._roll, args=[backend], name=f"batch-engine-{number}", daemon=True
            )
            for number, backend in enumerate(rolling)
        ]
        # makes the words of finished jobs, while the next ones are decoded
        self._finisher = ThreadPoolExecutor(1, "decode-results") if rolling else None
        for thread in self._threads:
            thread.start()

    def new_session(self, config: StreamConfig) -> StreamSession:
        """A stream whose jobs this engine can run. Raises DetectorError where its detector is missing."""
        return StreamSession(config, self._make_detector(config.detector), self._codec)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Queues ``job``. Cancelling the future drops a job that has not begun.

        Raises EngineClosedError after ``close``.
        """
        future: Future[DecodeResult] = Future()
        with self._condition:
            if self._closed:
                raise EngineClosedError
            self._queue.put(job, future)
            self._condition.notify()
        return future

    def close(self) -> None:
        """Cancels what waits, finishes what runs, and ends the threads."""
        with self._condition:
            self._closed = True
            waiting = self._queue.clear()
            self._condition.notify_all()
        for entry in waiting:
            entry.future.cancel()
        for thread in self._threads:
            thread.join()
        if self._finisher is not None:
            self._finisher.shutdown()

    def statistics(self) -> EngineStatistics:
        with self._condition:
            return EngineStatistics(
                queued=len(self._queue),
                running=self._running,
                done=self._done,
                failed=self._failed,
                audio_seconds=self._audio_seconds,
                busy_seconds=self._busy_seconds,
            )

    def _run(self, backend: Backend) -> None:
        while batch := self._take():
            started = self._clock()
            outcomes = self._decode(backend, batch)
            failed = [e for e, o in zip(batch, outcomes, strict=True) if isinstance(o, Exception)]
            with self._condition:
                self._busy -= 1
                self._busy_seconds += (self._clock() - started) / len(self._threads)
            self._settle(failed, failed=True)
            self._settle([entry for entry in batch if entry not in failed], failed=False)
            for entry, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    entry.future.set_exception(outcome)
                else:
                    entry.future.set_result(outcome)

    def _decode(
        self, backend: Backend, batch: Sequence[QueuedJob]
    ) -> list[DecodeResult | Exception]:
        """Where a batch fails, each job is run alone: one must not cost the others theirs."""
        try:
            self._on_start(self._busy)
            hurried = len(self._queue) >= _HURRY * len(self._threads)
            results = backend.decode([replace(entry.job, hurried=hurried) for entry in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(batch)} jobs gave {len(results)} results")
        except Exception as error:  # noqa: BLE001 - a job may fail in any way; the engine lives on
            _log.error("decode failed: %s at %s", type(error).__name__, _place(error))
            if len(batch) == 1:
                return [error]
            return [outcome for entry in batch for outcome in self._decode(backend, [entry])]
        return list(results)

    def _roll(self, backend: RollingBackend) -> None:
        # Jobs that failed together: each is run once more, alone, so that none costs the others theirs.
        suspects: deque[QueuedJob] = deque()
        while (batch := self._join(backend, suspects)) is not None:
            started = self._clock()
            failed: list[QueuedJob] = []
            done: list[tuple[QueuedJob, Callable[[], DecodeResult]]] = []
            error: Exception | None = None
            occupied = backend.occupied
            try:
                backend.admit([(entry, entry.job) for entry in batch])
            except Exception as broken:  # noqa: BLE001 - a job may fail in any way; the engine lives on
                error, failed = broken, batch
            try:
                done = backend.advance()
            except Exception as broken:  # noqa: BLE001 - as above
                error, failed = broken, [*failed, *backend.abandon()]
            with self._condition:
                # a batch that is not full has time for more, however long its passes take
                spent = (self._clock() - started) * max(occupied, backend.occupied)
                self._busy_seconds += spent / len(self._threads)
            if error is not None:
                _log.error("decode failed: %s at %s", type(error).__name__, _place(error))
                if type(error).__name__ in _FATAL:
                    self._give_up([*failed, *suspects], error)
                    self._fail()
                    return
                if len(failed) > 1:
                    suspects.extend(failed)
                else:
                    self._give_up(failed, error)
            assert self._finisher is not None
            for entry, outcome in done:
                self._finisher.submit(self._finish, entry, outcome)
        self._give_up(suspects, EngineClosedError())

    def _fail(self) -> None:
        with self._condition:
            self._closed = True
            waiting = self._queue.clear()
        for entry in waiting:
            entry.future.cancel()
        _log.critical("the GPU cannot be used by this process any more: it must be started again")
        self._on_fatal()

    def _give_up(self, failed: Sequence[QueuedJob], error: Exception) -> None:
        self._settle(failed, failed=True)
        for entry in failed:
            entry.future.set_exception(error)

    def _finish(self, entry: QueuedJob, outcome: Callable[[], DecodeResult]) -> None:
        try:
            result = outcome()
        except Exception as error:  # noqa: BLE001 - it must reach whoever waits
            _log.error("decode failed: %s at %s", type(error).__name__, _place(error))
            self._give_up([entry], error)
            return
        self._settle([entry], failed=False)
        entry.future.set_result(result)

    def _join(self, backend: RollingBackend, suspects: deque[QueuedJob]) -> list[QueuedJob] | None:
        """The jobs that ``backend`` takes now; waits for one if it has none. None: the engine is closed."""
        with self._condition:
            while backend.idle and not (self._queue or suspects or self._closed):
                self._condition.wait()
            if backend.idle and self._closed:
                return None
            if suspects:  # they count as running already
                return [suspects.popleft()] if backend.idle else []
            batch = self._queue.take(backend.room, backend.wave_seconds)
            self._running += len(batch)
            return batch

    def _take(self) -> list[QueuedJob]:
        """The next jobs to run; waits for one. Empty: the engine is closed."""
        with self._condition:
            batch: list[QueuedJob] = []
            while not batch:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return []
                batch = self._queue.take(self._max_batch)
            self._running += len(batch)
            self._busy += 1
            return batch

    def _settle(self, batch: Sequence[QueuedJob], *, failed: bool) -> None:
        with self._condition:
            self._running -= len(batch)
            self._audio_seconds += sum(entry.seconds for entry in batch)
            if failed:
                self._failed += len(batch)
            else:
                self._done += len(batch)


def _place(error: Exception) -> str:
    """Where ``error`` was raised. Its text is not for the log: it may hold what was said."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))


def open_engine(
    model: str, *, device: str | None = None, compute_type: str = "auto", threads: int | None = None
) -> EngineThread:
    """Loads ``model`` (a name or path), warms it up, and starts its engine.

    Raises the errors of ``load_model``, each one clear sentence.
    """
    import time

    from ..model.locate import locate
    from ..model.threads import keep_little_code, wait_politely

    locate(model)  # a mistyped name is told before the slow imports
    wait_politely()
    keep_little_code()

    import numpy as np
    import torch

    from ..model.loading import load_model
    from ..model.warmup import COMPILING, warm_up
    from .backend import WhisperBackend
    from .batch_backend import BatchBackend, fitting_slots

    if threads is not None:
        torch.set_num_threads(threads)
    whisper = load_model(model, device=device, compute_type=compute_type)
    languages: tuple[str, ...] = ()
    if whisper.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(whisper.device)
        batch: BatchBackend[QueuedJob] = BatchBackend(whisper, slots=fitting_slots(whisper, free))
        if whisper.is_multilingual:
            languages = batch.tokenizer.all_language_codes
        batch.warm_up()
        # the engine's thread waits for the GPU often, and should not wait for other threads after that
        sys.setswitchinterval(_SWITCH_SECONDS)
        return EngineThread(
            [],
            batch.tokenizer,
            model_name=whisper.name,
            languages=languages,
            clock=time.perf_counter,
            rolling=[batch],
            # streams go on in the process that is started next, if there is a journal
            on_fatal=lambda: os._exit(os.EX_SOFTWARE),
        )
    cores = torch.get_num_threads()
    # two streams on one core each get more done than one after the other on all cores
    workers = min(cores, _MOST_WORKERS)
    warm_up(whisper, lambda: _log.info(COMPILING))
    first = WhisperBackend(whisper)
    others = [WhisperBackend(whisper, encoder=first.encoder) for _ in range(workers - 1)]
    # the first decode compiles and allocates: no user should wait for that
    noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
    first.decode([DecodeJob(audio=noise, language="en")])
    if whisper.is_multilingual:
        languages = first.tokenizer.all_language_codes
    return EngineThread(
        [first, *others],
        first.tokenizer,
        model_name=whisper.name,
        languages=languages,
        on_start=lambda busy: torch.set_num_threads(max(1, cores // busy)),
        clock=time.perf_counter,
    )
