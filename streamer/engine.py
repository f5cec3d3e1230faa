"""The engine: jobs of all streams in, results out, on threads of its own that own the model."""

from __future__ import annotations

import heapq
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from .config import SAMPLE_RATE, DetectorName, StreamConfig
from .detectors import make_detector
from .errors import EngineClosedError
from .jobs import DecodeJob, DecodeResult
from .session import StreamSession, TextCodec
from .vad import SpeechDetector

__all__ = ["Backend", "EngineStatistics", "EngineThread", "open_engine"]

_log = logging.getLogger(__name__)


class Backend(Protocol):
    """What runs jobs. Called from one thread only."""

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order."""
        ...


class EngineStatistics(NamedTuple):
    queued: int  # jobs waiting
    running: int  # jobs being decoded
    done: int  # jobs decoded since the start
    failed: int
    audio_seconds: float  # of all windows decoded
    busy_seconds: float  # spent decoding, mean over the backends: a second a second is all there is


# Places in the queue. Somebody waits for the end of a sentence: an endpoint overtakes one job. A long
# window is that of a stream far behind, played faster than it was spoken: it lets the short ones of live
# streams go first, a number of times that its length bounds.
_ENDPOINT_PLACES = 1.5
_PLACES_PER_SECOND = 0.5
_MOST_WORKERS = 4  # backends of one model on CPU


@dataclass(order=True)
class _Entry:
    """First come, first served, in the main. As a stream has one job out at a time, no stream can
    keep the others from their turn."""

    place: float
    number: int
    job: DecodeJob = field(compare=False)
    future: Future[DecodeResult] = field(compare=False)


class EngineThread:
    """Runs every backend on a thread of its own. ``submit`` may be called from any thread.

    A stream has one job out at a time, so the queue is bounded by the number of streams.
    ``on_start`` is called on a backend's thread before it decodes, with how many are at work then.
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
    ) -> None:
        self.model_name = model_name
        self.languages = languages  # codes a stream may ask for; empty: English only
        self._on_start = on_start
        self._codec = codec
        self._make_detector = make_detector
        self._clock = clock
        self._max_batch = max_batch
        self._condition = threading.Condition()
        self._queue: list[_Entry] = []  # a heap
        self._number = 0  # jobs submitted so far
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
            self._number += 1
            seconds = len(job.audio) / SAMPLE_RATE
            place = self._number + seconds * _PLACES_PER_SECOND
            if job.final:
                place -= _ENDPOINT_PLACES
            entry = _Entry(place, self._number, job, future)
            heapq.heappush(self._queue, entry)
            self._condition.notify()
        return future

    def close(self) -> None:
        """Cancels what waits, finishes what runs, and ends the threads."""
        with self._condition:
            self._closed = True
            waiting, self._queue = self._queue, []
            self._condition.notify_all()
        for entry in waiting:
            entry.future.cancel()
        for thread in self._threads:
            thread.join()

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
            try:
                self._on_start(self._busy)
                results = backend.decode([entry.job for entry in batch])
                if len(results) != len(batch):
                    raise ValueError(f"{len(batch)} jobs gave {len(results)} results")
            except Exception as error:  # noqa: BLE001 - a job may fail in any way; the engine lives on
                _log.error("decode failed: %s at %s", type(error).__name__, _place(error))
                for entry in batch:
                    entry.future.set_exception(error)
                self._account(batch, started, failed=True)
                continue
            self._account(batch, started, failed=False)
            for entry, result in zip(batch, results, strict=True):
                entry.future.set_result(result)

    def _take(self) -> list[_Entry]:
        """The next jobs to run; waits for one. Empty: the engine is closed."""
        with self._condition:
            batch: list[_Entry] = []
            while not batch:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return []
                while self._queue and len(batch) < self._max_batch:
                    entry = heapq.heappop(self._queue)
                    if entry.future.set_running_or_notify_cancel():
                        batch.append(entry)
            self._running += len(batch)
            self._busy += 1
            return batch

    def _account(self, batch: list[_Entry], started: float, *, failed: bool) -> None:
        with self._condition:
            self._running -= len(batch)
            self._busy -= 1
            self._busy_seconds += (self._clock() - started) / len(self._threads)
            self._audio_seconds += sum(len(entry.job.audio) for entry in batch) / SAMPLE_RATE
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
    from ..model.threads import wait_politely

    locate(model)  # a mistyped name is told before the slow imports
    wait_politely()

    import numpy as np
    import torch

    from ..model.loading import load_model
    from ..model.warmup import COMPILING, warm_up
    from .backend import WhisperBackend

    if threads is not None:
        torch.set_num_threads(threads)
    whisper = load_model(model, device=device, compute_type=compute_type)
    cores = torch.get_num_threads()
    # two streams on one core each get more done than one after the other on all cores
    workers = min(cores, _MOST_WORKERS) if whisper.device.type == "cpu" else 1
    warm_up(whisper, lambda: _log.info(COMPILING))
    first = WhisperBackend(whisper)
    others = [WhisperBackend(whisper, encoder=first.encoder) for _ in range(workers - 1)]
    tokenizer = first.tokenizer
    # the first decode compiles and allocates: no user should wait for that
    noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
    first.decode([DecodeJob(audio=noise, language="en")])
    return EngineThread(
        [first, *others],
        tokenizer,
        model_name=whisper.name,
        languages=tokenizer.all_language_codes if whisper.is_multilingual else (),
        on_start=lambda busy: torch.set_num_threads(max(1, cores // busy)),
        clock=time.perf_counter,
    )
