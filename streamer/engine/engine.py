"""The engine: jobs of all streams in, results out, on threads of its own that own the model.

Each backend has a thread, which goes through one loop for as long as the engine is open:

    schedule: jobs from the queue, as many as the backend has room for
    run: the backend admits them, and goes one step
    postprocess: the results of what is finished by then reach those who wait for them
"""

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
from .backend import Backend, Outcome
from .scheduler import JobQueue, QueuedJob

__all__ = ["Engine", "EngineStatistics"]

_log = logging.getLogger(__name__)

_REST_SECONDS = 20.0  # between two calls of ``on_rest``


class EngineStatistics(NamedTuple):
    """The work of an engine since it was started, and the work that waits."""

    queued: int  # jobs waiting
    running: int  # jobs being decoded
    done: int  # jobs decoded since the start
    failed: int
    audio_seconds: float  # of all windows decoded
    # spent decoding, mean over the backends: a second a second is all there is. Of a batch, the share of
    # its places that are taken counts
    busy_seconds: float
    processes: int = 1  # that decode; 0: the last one has ended, and the next is being started


class Engine:
    """Runs every backend on a thread of its own. ``submit`` may be called from any thread.

    A stream has one job out at a time, so the queue is bounded by the number of streams.

    Args:
        backends: each belongs to its thread from now on.
        codec: the tokenizer that sessions need.
        model_name: for those who ask which model this is.
        languages: codes that a stream may ask for; empty for an English model.
        make_detector: makes the speech detector of a new session.
        on_rest: called between jobs, on a backend's thread: at most every ``rest_seconds`` while there are
            jobs, and once after the last.
        on_fatal: called after an error that leaves a backend unusable for this process.
        clock: seconds, as ``time.perf_counter``.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        codec: TextCodec,
        *,
        model_name: str,
        languages: tuple[str, ...] = (),
        make_detector: Callable[[DetectorName], SpeechDetector] = make_detector,
        on_rest: Callable[[], None] = lambda: None,
        rest_seconds: float = _REST_SECONDS,
        on_fatal: Callable[[], None] = lambda: None,
        clock: Callable[[], float],
    ) -> None:
        self.model_name = model_name
        self.languages = languages
        self._codec = codec
        self._make_detector = make_detector
        self._on_rest = on_rest
        self._rest_seconds = rest_seconds
        self._on_fatal = on_fatal
        self._clock = clock
        self._condition = threading.Condition()  # guards all that follows
        self._queue = JobQueue()
        self._closed = False
        self._rested = True  # no job has run since ``on_rest`` was called
        self._rest_at = clock() + rest_seconds
        self._running = 0
        self._done = 0
        self._failed = 0
        self._audio_seconds = 0.0
        self._busy_seconds = 0.0
        # makes the results of finished jobs, while the next ones are decoded
        self._results = ThreadPoolExecutor(1, "decode-results")
        self._threads = [
            threading.Thread(
                target=self._loop, args=[backend], name=f"decode-engine-{number}", daemon=True
            )
            for number, backend in enumerate(backends)
        ]
        for thread in self._threads:
            thread.start()

    def new_session(self, config: StreamConfig) -> StreamSession:
        """Return a stream whose jobs this engine can run.

        Raises:
            DetectorError: its speech detector cannot be had.
        """
        return StreamSession(config, self._make_detector(config.detector), self._codec)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Queue ``job``. Cancelling the future drops a job that has not begun.

        Raises:
            EngineClosedError: ``close`` was called, or a backend cannot be used any longer.
        """
        future: Future[DecodeResult] = Future()
        with self._condition:
            if self._closed:
                raise EngineClosedError
            self._queue.put(job, future, self._clock())
            self._condition.notify()
        return future

    def close(self) -> None:
        """Cancel what waits, finish what runs, and end the threads."""
        self._refuse_jobs()
        for thread in self._threads:
            thread.join()
        self._results.shutdown()

    def statistics(self) -> EngineStatistics:
        """Return the figures of this moment."""
        with self._condition:
            return EngineStatistics(
                queued=len(self._queue),
                running=self._running,
                done=self._done,
                failed=self._failed,
                audio_seconds=self._audio_seconds,
                busy_seconds=self._busy_seconds,
            )

    # The loop of a backend's thread

    def _loop(self, backend: Backend) -> None:
        # Jobs that failed together: each is run once more, alone, so that none costs the others theirs.
        retry_alone: deque[QueuedJob] = deque()
        while (jobs := self._schedule(backend, retry_alone)) is not None:
            finished = self._run(backend, jobs, retry_alone)
            self._postprocess(finished)
            self._rest_if_due()
        self._fail_jobs(retry_alone, EngineClosedError())

    def _schedule(self, backend: Backend, retry_alone: deque[QueuedJob]) -> list[QueuedJob] | None:
        """Return the jobs that ``backend`` takes now; wait for one while it has none.

        Empty: it goes on with those it has, or it is time to rest. None: the engine is closed.
        """
        with self._condition:
            while not (backend.occupied or self._queue or retry_alone or self._closed):
                seconds = None if self._rested else self._rest_at - self._clock()
                if seconds is not None and seconds <= 0:
                    return []
                self._condition.wait(seconds)
            if self._closed and not backend.occupied:
                return None
            if retry_alone:  # they count as running already
                return [] if backend.occupied else [retry_alone.popleft()]
            jobs = self._queue.take(*backend.room)
            self._running += len(jobs)
            return self._hurry_endpoints(backend, jobs)

    def _hurry_endpoints(self, backend: Backend, jobs: list[QueuedJob]) -> list[QueuedJob]:
        """Mark the endpoints among ``jobs`` if many others wait."""
        now = self._clock()
        if not jobs or not backend.busy_rule.applies(
            taken=len(jobs),
            left=len(self._queue) // len(self._threads),
            waited=max(now - entry.asked for entry in jobs),
        ):
            return jobs
        return [
            replace(entry, job=replace(entry.job, hurried=True)) if entry.job.endpoint else entry
            for entry in jobs
        ]

    def _run(
        self, backend: Backend, jobs: Sequence[QueuedJob], retry_alone: deque[QueuedJob]
    ) -> list[tuple[QueuedJob, Outcome]]:
        """Admit ``jobs`` and go one step; return what is finished. A job may fail in any way."""
        finished: list[tuple[QueuedJob, Outcome]] = []
        failed: list[QueuedJob] = []
        error: Exception | None = None
        started = self._clock()
        try:
            backend.admit(jobs)
        except Exception as broken:  # noqa: BLE001 - the engine lives on
            error, failed = broken, list(jobs)
        # a batch that is not full has time for more, however long its steps take
        occupied = backend.occupied
        try:
            finished = backend.step()
        except Exception as broken:  # noqa: BLE001 - the engine lives on
            error, failed = broken, [*failed, *backend.abandon()]
        if occupied:
            with self._condition:
                spent = (self._clock() - started) * occupied
                self._busy_seconds += spent / len(self._threads)
                self._rested = False
        if error is not None:
            _log_error(error)
            if backend.is_fatal(error):
                self._lose([*failed, *backend.abandon(), *retry_alone], error)
                retry_alone.clear()
            elif len(failed) > 1:
                retry_alone.extend(
                    replace(entry, job=replace(entry.job, hurried=False)) for entry in failed
                )
            else:
                self._fail_jobs(failed, error)
        return finished

    def _postprocess(self, finished: Sequence[tuple[QueuedJob, Outcome]]) -> None:
        for entry, outcome in finished:
            self._results.submit(self._finish_job, entry, outcome)

    def _finish_job(self, entry: QueuedJob, outcome: Outcome) -> None:
        try:
            result = outcome()
        except Exception as error:  # noqa: BLE001 - it must reach those who wait for it
            _log_error(error)
            self._fail_jobs([entry], error)
            return
        self._count([entry], failed=False)
        entry.future.set_result(result)

    def _fail_jobs(self, failed: Sequence[QueuedJob], error: Exception) -> None:
        self._count(failed, failed=True)
        for entry in failed:
            entry.future.set_exception(error)

    def _count(self, jobs: Sequence[QueuedJob], *, failed: bool) -> None:
        with self._condition:
            self._running -= len(jobs)
            self._audio_seconds += sum(entry.seconds for entry in jobs)
            if failed:
                self._failed += len(jobs)
            else:
                self._done += len(jobs)

    def _rest_if_due(self) -> None:
        """Call ``on_rest``, if its time has come; never while the lock is held."""
        with self._condition:
            now = self._clock()
            if self._rested or now < self._rest_at:
                return
            self._rested = True
            self._rest_at = now + self._rest_seconds
        self._on_rest()

    # The end

    def _refuse_jobs(self) -> None:
        """Take no job from now on, and cancel what waits."""
        with self._condition:
            self._closed = True
            waiting = self._queue.clear()
            self._condition.notify_all()
        for entry in waiting:
            entry.future.cancel()

    def _lose(self, failed: Sequence[QueuedJob], error: Exception) -> None:
        """Nothing can be decoded by this process after ``error``."""
        self._refuse_jobs()
        closed = EngineClosedError()
        closed.__cause__ = error
        self._fail_jobs(failed, closed)
        _log.critical("the GPU cannot be used by this process any more: it must be started again")
        self._on_fatal()


def _log_error(error: Exception) -> None:
    """Log where ``error`` was raised. Its text is not for the log: it may hold words of a stream."""
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
    _log.error("decode failed: %s at %s", type(error).__name__, place)
