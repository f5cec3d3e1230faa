"""The engine: jobs of all streams in, results out, on threads of its own that own the model."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..audio.vad import SpeechDetector, make_detector
from ..config import DetectorName, StreamConfig
from ..errors import EngineClosedError
from ..jobs import DecodeJob, DecodeResult
from ..session.session import StreamSession, TextCodec
from .backend import Backend, RollingBackend
from .scheduler import JobQueue, QueuedJob

__all__ = ["FATAL", "EngineStatistics", "EngineThread"]

_log = logging.getLogger(__name__)


class EngineStatistics(NamedTuple):
    queued: int  # jobs waiting
    running: int  # jobs being decoded
    done: int  # jobs decoded since the start
    failed: int
    audio_seconds: float  # of all windows decoded
    # spent decoding, mean over the backends: a second a second is all there is. Of a batch, as much as its
    # places were taken
    busy_seconds: float
    processes: int = 1  # that decode; 0: the last one has ended, and the next is being started


# Under load endpoints make do with less. Backends of one job: so many wait for each of them. Batches, which
# jobs always wait for: one has waited for so long, and many are about to be taken together.
_HURRY, _CROWD, _HURRY_SECONDS = 2, 8, 0.05
_REST_SECONDS = 20.0  # between two moments that a backend takes for itself
# PyTorch's name for an error after which every call to the GPU fails (an illegal access, an assertion)
FATAL = frozenset({"AcceleratorError"})


class EngineThread:
    """Runs every backend on a thread of its own. ``submit`` may be called from any thread.

    A stream has one job out at a time, so the queue is bounded by the number of streams.
    ``on_start`` is called on a backend's thread before it decodes, with how many are at work then;
    ``on_rest`` between jobs, every ``rest_seconds``, and once when there are no more (not of batches);
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
        on_rest: Callable[[], None] = lambda: None,
        rest_seconds: float = _REST_SECONDS,
        clock: Callable[[], float],
        rolling: Sequence[RollingBackend] = (),
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        self.model_name = model_name
        self.languages = languages  # codes a stream may ask for; empty: English only
        self._on_start = on_start
        self._on_rest = on_rest
        self._rest_seconds = rest_seconds
        self._rested = True  # since the last job
        self._rest_at = clock() + rest_seconds
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
            self._queue.put(job, future, self._clock())
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
            if (now := self._clock()) >= self._rest_at:
                self._rest_at = now + self._rest_seconds
                self._on_rest()

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
                backend.admit(self._hurried(batch))
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
                if type(error).__name__ in FATAL:
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

    def _hurried(self, batch: Sequence[QueuedJob]) -> list[tuple[QueuedJob, DecodeJob]]:
        waited = max((self._clock() - entry.asked for entry in batch), default=0.0)
        late = len(batch) >= _CROWD and waited > _HURRY_SECONDS
        return [
            (entry, replace(entry.job, hurried=True) if late and entry.job.endpoint else entry.job)
            for entry in batch
        ]

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
                    woken = self._condition.wait(None if self._rested else self._rest_seconds)
                    if not (woken or self._queue or self._busy or self._rested):
                        self._rested = True
                        self._on_rest()
                if self._closed:
                    return []
                batch = self._queue.take(self._max_batch)
            self._running += len(batch)
            self._busy += 1
            self._rested = False
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
