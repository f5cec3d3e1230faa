"""A job that fails beside others: it alone is lost, whether the backend runs one job a step or many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from whisper_stream.streamer.engine.backend import BusyRule, Outcome, Room, SequentialBackend
from whisper_stream.streamer.engine.engine import Engine
from whisper_stream.streamer.engine.scheduler import QueuedJob
from whisper_stream.streamer.errors import EngineClosedError
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import FakeCodec, LevelDetector

WAIT = 20.0  # seconds until a test gives up
BAD = 3  # the number of the job that takes too much memory


def job(number: int) -> DecodeJob:
    return DecodeJob(audio=np.zeros(16_000, np.float32), prompt=(number,))


def answer(job: DecodeJob) -> DecodeResult:
    return DecodeResult(tokens=job.prompt, words=(), language="en")


def check(jobs: Sequence[DecodeJob]) -> None:
    if any(job.prompt == (BAD,) for job in jobs):
        raise torch.OutOfMemoryError("CUDA out of memory")


class OneByOne(SequentialBackend):
    """Waits for ``gate`` before the first job."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        assert self.gate.wait(WAIT)
        check([job])
        return answer(job)


class Batch:
    """Takes up to four jobs, and has each finished after two steps.

    Args:
        spoils: where the bad job fails: admit, step, outcome.
    """

    busy_rule = BusyRule(taken=8, waited=0.05)

    def __init__(self, spoils: str = "nowhere") -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.room = Room(4)
        self.sizes: list[int] = []
        self._spoils = spoils
        self._jobs: list[QueuedJob] = []
        self._steps = 0

    @property
    def occupied(self) -> float:
        return len(self._jobs) / 4

    def admit(self, jobs: Sequence[QueuedJob]) -> None:
        if not jobs:
            return
        self.begun.set()
        assert self.gate.wait(WAIT)
        self.sizes.append(len(jobs))
        if self._spoils == "admit":
            check([entry.job for entry in jobs])
        self._jobs += jobs

    def step(self) -> list[tuple[QueuedJob, Outcome]]:
        self._steps += 1
        if self._spoils == "step":
            check([entry.job for entry in self._jobs])
        if self._steps % 2:
            return []
        done, self._jobs = self._jobs, []
        return [(entry, partial(self._outcome, entry.job)) for entry in done]

    def abandon(self) -> list[QueuedJob]:
        abandoned, self._jobs = self._jobs, []
        return abandoned

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, BrokenPipeError)

    def _outcome(self, job: DecodeJob) -> DecodeResult:
        if self._spoils == "outcome":
            check([job])
        return answer(job)


def engine_of(
    backend: OneByOne | Batch,
    clock: Callable[[], float] = lambda: 0.0,
    on_fatal: Callable[[], None] = lambda: None,
) -> Engine:
    return Engine(
        [backend],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        clock=clock,
        on_fatal=on_fatal,
    )


def outcomes(futures: list[Future[DecodeResult]]) -> list[int | str]:
    """The number of each job that was done, and the error of each that was not."""
    found: list[int | str] = []
    for future in futures:
        error = future.exception(WAIT)
        found.append(future.result().tokens[0] if error is None else type(error).__name__)
    return found


@pytest.mark.parametrize(
    "make", [OneByOne, lambda: Batch("admit"), lambda: Batch("step"), lambda: Batch("outcome")]
)
def test_out_of_memory_costs_one_job_only(make: Callable[[], OneByOne | Batch]) -> None:
    backend = make()
    engine = engine_of(backend)
    futures = [engine.submit(job(number)) for number in range(8)]
    backend.gate.set()
    expected: list[int | str] = list(range(8))
    expected[BAD] = "OutOfMemoryError"
    assert outcomes(futures) == expected
    later = engine.submit(job(9))
    assert outcomes([later]) == [9]
    statistics = engine.statistics()
    assert (statistics.running, statistics.done, statistics.failed) == (0, 8, 1)
    engine.close()


@pytest.mark.parametrize("spoils", ["admit", "step"])
def test_jobs_that_failed_together_are_run_once_more_each_alone(spoils: str) -> None:
    backend = Batch(spoils)
    engine = engine_of(backend)
    futures = [engine.submit(job(1))]
    assert backend.begun.wait(WAIT)
    futures += [engine.submit(job(number)) for number in (2, BAD, 4)]
    backend.gate.set()
    assert outcomes(futures) == [1, 2, "OutOfMemoryError", 4]
    # the first alone, then all others together, then each of those that failed
    assert backend.sizes == ([1, 3, 1, 1, 1] if spoils == "admit" else [1, 3, 1, 1, 1, 1])
    engine.close()


def test_what_is_still_to_be_tried_alone_learns_that_the_engine_is_closed() -> None:
    class Closing(Batch):
        def abandon(self) -> list[QueuedJob]:
            abandoned = super().abandon()
            closing.start()  # it waits for this thread
            assert closed.wait(WAIT)
            return abandoned

    backend = Closing("step")
    backend.room = Room(2)
    engine = engine_of(backend)
    closing = threading.Thread(target=engine.close)
    closed = threading.Event()
    futures = [engine.submit(job(1))]
    assert backend.begun.wait(WAIT)
    futures += [engine.submit(job(number)) for number in (2, BAD)]
    queued = engine.submit(job(4))
    queued.add_done_callback(lambda future: closed.set())
    backend.gate.set()
    errors = [type(future.exception(WAIT)) for future in futures]
    closing.join(WAIT)
    assert not closing.is_alive()
    assert errors == [EngineClosedError] * 3
    assert queued.cancelled()
    assert engine.statistics().running == 0


def test_a_gpu_that_is_lost_ends_the_engine_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(Batch):
        def step(self) -> list[tuple[QueuedJob, Outcome]]:
            raise BrokenPipeError("an illegal memory access was encountered")

    backend = Lost()
    lost = threading.Event()
    engine = engine_of(backend, on_fatal=lost.set)
    futures = [engine.submit(job(1))]
    assert backend.begun.wait(WAIT)
    futures += [engine.submit(job(number)) for number in range(2, 7)]  # more than it takes at once
    backend.gate.set()
    assert lost.wait(WAIT)
    # it can be run elsewhere
    assert isinstance(futures[0].exception(WAIT), EngineClosedError)
    assert all(future.cancelled() or future.exception(WAIT) is not None for future in futures)
    with pytest.raises(EngineClosedError):
        engine.submit(job(9))
    assert "must be started again" in caplog.text
    assert "BrokenPipeError" in caplog.text
    engine.close()
    assert engine.statistics().running == 0


def test_endpoints_are_hurried_once_many_jobs_have_waited() -> None:
    now = 0.0
    waves: list[list[DecodeJob]] = []

    class Watched(Batch):
        def admit(self, jobs: Sequence[QueuedJob]) -> None:
            if jobs:
                waves.append([entry.job for entry in jobs])
            super().admit(jobs)

    backend = Watched()
    backend.room = Room(100)
    engine = engine_of(backend, clock=lambda: now)

    def wave(jobs: int, waited: float) -> list[bool]:
        """One update and endpoints that wait while another job is admitted -> whether they are hurried."""
        nonlocal now
        backend.gate.clear()
        backend.begun.clear()
        futures = [engine.submit(job(1))]
        assert backend.begun.wait(WAIT)  # it is held there until the gate is opened
        futures += [engine.submit(replace(job(n), endpoint=n > 10)) for n in range(10, 10 + jobs)]
        now += waited
        backend.gate.set()
        assert all(future.result(WAIT) for future in futures)
        assert not any(each.hurried for each in waves[-1] if not each.endpoint)
        return [each.hurried for each in waves[-1] if each.endpoint]

    assert wave(8, 0.01) == [False] * 7
    assert wave(8, 0.1) == [True] * 7
    # a slow GPU with a few streams: all of them get the best there is
    assert wave(7, 0.1) == [False] * 6
    engine.close()
