"""A job that fails beside others: it alone is lost, whether the backend runs batches or rolls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from whisper_stream.streamer.engine.engine import EngineThread
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


class Batches:
    """Runs what it is given at once; waits for ``gate`` before the first."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sizes: list[int] = []

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        assert self.gate.wait(WAIT)
        self.sizes.append(len(jobs))
        check(jobs)
        return [answer(each) for each in jobs]


class Rolls:
    """Takes up to four jobs, and has each done after two passes. ``spoils``: where the bad one fails."""

    room = 4
    occupied = 1.0
    wave_seconds = 100.0

    def __init__(self, spoils: str) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.sizes: list[int] = []
        self._spoils = spoils
        self._jobs: list[tuple[QueuedJob, DecodeJob]] = []
        self._passes = 0

    @property
    def idle(self) -> bool:
        return not self._jobs

    def admit(self, jobs: Sequence[tuple[QueuedJob, DecodeJob]]) -> None:
        self.begun.set()
        assert self.gate.wait(WAIT)
        if jobs:
            self.sizes.append(len(jobs))
        if self._spoils == "admit":
            check([each for _, each in jobs])
        self._jobs += jobs

    def advance(self) -> list[tuple[QueuedJob, Callable[[], DecodeResult]]]:
        self._passes += 1
        if self._spoils == "advance":
            check([each for _, each in self._jobs])
        if self._passes % 2:
            return []
        done, self._jobs = self._jobs, []
        return [(entry, partial(answer, each)) for entry, each in done]

    def abandon(self) -> list[QueuedJob]:
        given_up, self._jobs = self._jobs, []
        return [entry for entry, _ in given_up]


def engine_of(backend: Batches | Rolls) -> EngineThread:
    return EngineThread(
        [backend] if isinstance(backend, Batches) else [],
        FakeCodec(),
        model_name="fake",
        max_batch=4,
        make_detector=lambda name: LevelDetector(),
        clock=lambda: 0.0,
        rolling=[backend] if isinstance(backend, Rolls) else (),
    )


def outcomes(futures: list[Future[DecodeResult]]) -> list[int | str]:
    """The number of each job that was done, and the error of each that was not."""
    found: list[int | str] = []
    for future in futures:
        error = future.exception(WAIT)
        found.append(future.result().tokens[0] if error is None else type(error).__name__)
    return found


@pytest.mark.parametrize("make", [Batches, lambda: Rolls("admit"), lambda: Rolls("advance")])
def test_out_of_memory_costs_one_job_only(make: Callable[[], Batches | Rolls]) -> None:
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
    assert max(backend.sizes) > 1 and backend.sizes.count(1) >= 2  # together first, then alone
    engine.close()


def test_what_is_still_to_be_tried_alone_is_told_that_the_engine_is_closed() -> None:
    class Closing(Rolls):
        def abandon(self) -> list[QueuedJob]:
            given_up = super().abandon()
            if len(given_up) > 1:
                closing.start()
                while not engine._closed:  # the thread that closes waits for this one
                    pass
            return given_up

    backend = Closing("advance")
    engine = engine_of(backend)
    closing = threading.Thread(target=engine.close)
    futures = [engine.submit(job(1))]
    assert backend.begun.wait(WAIT)
    futures += [engine.submit(job(number)) for number in (2, BAD)]
    backend.gate.set()
    errors = [type(future.exception(WAIT)) for future in futures]
    closing.join(WAIT)
    assert not closing.is_alive()
    assert errors == [EngineClosedError] * 3
    assert engine.statistics().running == 0


def test_a_gpu_that_is_lost_ends_the_engine_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(Rolls):
        def advance(self) -> list[tuple[QueuedJob, Callable[[], DecodeResult]]]:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    backend = Lost("advance")
    told = threading.Event()
    engine = EngineThread(
        [],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        clock=lambda: 0.0,
        rolling=[backend],
        on_fatal=told.set,
    )
    futures = [engine.submit(job(1))]
    assert backend.begun.wait(WAIT)
    futures += [engine.submit(job(number)) for number in range(2, 7)]  # more than it takes at once
    backend.gate.set()
    assert told.wait(WAIT)
    assert isinstance(futures[0].exception(WAIT), torch.AcceleratorError)
    assert all(future.cancelled() or future.exception(WAIT) is not None for future in futures)
    with pytest.raises(EngineClosedError):
        engine.submit(job(9))
    assert "must be started again" in caplog.text
    engine.close()


def test_endpoints_are_hurried_once_many_jobs_have_waited() -> None:
    now = 0.0
    backend = Rolls("nothing")
    backend.room = 100
    waves: list[list[DecodeJob]] = []
    admit = backend.admit

    def look(jobs: Sequence[tuple[QueuedJob, DecodeJob]]) -> None:
        if jobs:
            waves.append([each for _, each in jobs])
        admit(jobs)

    backend.admit = look  # type: ignore[method-assign]
    engine = EngineThread(
        [],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        clock=lambda: now,
        rolling=[backend],
    )

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
    assert (
        wave(7, 0.1) == [False] * 6
    )  # a slow GPU with a few streams: all of them get the best there is
    engine.close()
