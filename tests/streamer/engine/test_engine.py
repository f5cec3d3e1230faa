"""The engine's loop with a backend of our own: order, failures, cancelling, closing, figures.

Nothing sleeps: ``GatedBackend`` holds the thread until the test lets a job go.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import numpy as np
import pytest
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.engine.backend import SequentialBackend
from whisper_stream.streamer.engine.engine import Engine
from whisper_stream.streamer.errors import EngineClosedError
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import FakeCodec, LevelDetector

WAIT = 20.0  # seconds until a test gives up


class GatedBackend(SequentialBackend):
    """Answers with the job's prompt. Each job waits for ``go``; ``fail`` breaks the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.Queue[DecodeJob] = queue.Queue()
        self.gate = threading.Semaphore(0)
        self.fail: Exception | None = None

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        self.begun.put(job)
        assert self.gate.acquire(timeout=WAIT)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        return DecodeResult(tokens=job.prompt, words=(), language="en")

    def go(self, jobs: int = 1) -> None:
        self.gate.release(jobs)


def job(number: int, *, endpoint: bool = False, seconds: float = 1.0) -> DecodeJob:
    audio = np.zeros(round(seconds * 16_000), np.float32)
    return DecodeJob(audio=audio, prompt=(number,), endpoint=endpoint)


def number_of(future: Future[DecodeResult]) -> int:
    return future.result(WAIT).tokens[0]


@pytest.fixture
def backend() -> GatedBackend:
    return GatedBackend()


def start(backend: GatedBackend) -> Engine:
    ticks = itertools.count()
    return Engine(
        [backend],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        clock=lambda: float(next(ticks)),
    )


@pytest.fixture
def engine(backend: GatedBackend) -> Iterator[Engine]:
    engine = start(backend)
    yield engine
    backend.go(1000)
    engine.close()


def hold(engine: Engine, backend: GatedBackend) -> Future[DecodeResult]:
    """Keeps the engine busy with a job, so that what follows waits."""
    future = engine.submit(job(0))
    backend.begun.get(timeout=WAIT)
    return future


def test_rests_once_after_the_last_job(backend: GatedBackend) -> None:
    rests: queue.Queue[int] = queue.Queue()
    resting = Engine(
        [backend],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        # the lock is free meanwhile: others may submit, and ask for figures
        on_rest=lambda: rests.put(resting.statistics().queued),
        rest_seconds=0.001,
        clock=time.monotonic,
    )
    try:
        for number in (1, 2):
            future = resting.submit(job(number))
            backend.begun.get(timeout=WAIT)
            assert rests.empty()  # not while there is one, nor before the first
            backend.go()
            assert rests.get(timeout=WAIT) == 0
            assert number_of(future) == number
    finally:
        resting.close()
    assert rests.empty()


def test_rests_between_jobs_when_it_is_time(backend: GatedBackend) -> None:
    rests: queue.Queue[int] = queue.Queue()
    now = 0.0
    engine = Engine(
        [backend],
        FakeCodec(),
        model_name="fake",
        make_detector=lambda name: LevelDetector(),
        on_rest=lambda: rests.put(last),
        rest_seconds=3 * WAIT,
        clock=lambda: now,
    )
    last = 0
    backend.go(1000)
    try:
        # a minute after the start, and a minute after that
        for last, at in [(1, 59.0), (2, 60.0), (3, 61.0), (4, 119.0), (5, 120.0), (6, 121.0)]:
            now = at
            assert number_of(engine.submit(job(last))) == last
            if last in (2, 5):
                assert rests.get(timeout=WAIT) == last
    finally:
        engine.close()
    assert rests.empty()


def test_an_endpoint_overtakes_one_job(engine: Engine, backend: GatedBackend) -> None:
    held = hold(engine, backend)
    waiting = [engine.submit(job(n, endpoint=n in (3, 5))) for n in range(1, 6)]
    backend.go(6)
    assert [number_of(future) for future in waiting] == [1, 2, 3, 4, 5]
    assert number_of(held) == 0
    order = [backend.begun.get(timeout=WAIT).prompt[0] for _ in range(5)]
    assert order == [1, 3, 2, 5, 4]


def test_a_stream_far_behind_does_not_keep_live_ones_waiting(
    engine: Engine, backend: GatedBackend
) -> None:
    """Endpoints of long windows, as of a file played at full speed, beside short updates."""
    hold(engine, backend)
    waiting = [engine.submit(job(n, endpoint=True, seconds=28.0)) for n in (1, 2)]
    waiting += [engine.submit(job(n, seconds=6.0)) for n in (3, 4)]
    backend.go(5)
    assert [number_of(future) for future in waiting] == [1, 2, 3, 4]
    order = [backend.begun.get(timeout=WAIT).prompt[0] for _ in range(4)]
    assert order == [3, 4, 1, 2]


def test_a_long_window_gets_its_turn(engine: Engine, backend: GatedBackend) -> None:
    """However many short ones come after it."""
    hold(engine, backend)
    long = engine.submit(job(1, seconds=28.0))
    waiting = [engine.submit(job(n, seconds=1.0)) for n in range(2, 40)]
    backend.go(40)
    assert [number_of(future) for future in waiting] == list(range(2, 40))
    assert number_of(long) == 1
    order = [backend.begun.get(timeout=WAIT).prompt[0] for _ in range(39)]
    assert order.index(1) < 20


def test_a_failed_job_leaves_the_engine_alive(engine: Engine, backend: GatedBackend) -> None:
    backend.fail = RuntimeError("no memory")
    first, second = engine.submit(job(1)), engine.submit(job(2))
    backend.go(2)
    with pytest.raises(RuntimeError, match="no memory"):
        first.result(WAIT)
    assert number_of(second) == 2
    assert engine.statistics()[:4] == (0, 0, 1, 1)


def test_a_cancelled_job_is_never_run(engine: Engine, backend: GatedBackend) -> None:
    hold(engine, backend)
    dropped, kept = engine.submit(job(1)), engine.submit(job(2))
    assert dropped.cancel()
    backend.go(2)
    assert number_of(kept) == 2
    assert backend.begun.get(timeout=WAIT).prompt == (2,)
    assert backend.begun.empty()


def test_closing_cancels_what_waits_and_finishes_what_runs(backend: GatedBackend) -> None:
    engine = start(backend)
    running = hold(engine, backend)
    waiting = engine.submit(job(1))
    closer = threading.Thread(target=engine.close)
    closer.start()
    with pytest.raises(CancelledError):
        waiting.result(WAIT)
    backend.go()
    closer.join(WAIT)
    assert not closer.is_alive()
    assert number_of(running) == 0
    with pytest.raises(EngineClosedError):
        engine.submit(job(2))
    engine.close()  # once more does no harm


def test_statistics(engine: Engine, backend: GatedBackend) -> None:
    assert engine.statistics() == (0, 0, 0, 0, 0.0, 0.0, 1)
    hold(engine, backend)
    other = engine.submit(job(1, seconds=2.5))
    assert engine.statistics()[:4] == (1, 1, 0, 0)
    backend.go(2)
    number_of(other)
    engine.close()
    assert engine.statistics()[:5] == (0, 0, 2, 0, 3.5)
    assert engine.statistics().busy_seconds >= 2.0  # the clock ticks whenever it is asked


def test_sessions_are_made_with_the_options_given(engine: Engine) -> None:
    session = engine.new_session(StreamConfig(buffer_seconds=40.0))
    assert session.room == 40 * 16_000
    assert (engine.model_name, engine.languages) == ("fake", ())


def test_two_backends_work_at_once() -> None:
    first, second = GatedBackend(), GatedBackend()
    engine = Engine([first, second], FakeCodec(), model_name="fake", clock=lambda: 0.0)
    waiting = [engine.submit(job(number)) for number in (1, 2, 3)]
    began = [backend.begun.get(timeout=WAIT).prompt[0] for backend in (first, second)]
    assert sorted(began) == [1, 2]
    assert engine.statistics().running == 2
    assert engine.statistics().queued == 1
    first.go(2)
    second.go(2)
    assert [number_of(future) for future in waiting] == [1, 2, 3]
    engine.close()
    assert engine.statistics().running == 0
    assert engine.statistics().done == 3


def test_endpoints_are_hurried_once_two_jobs_wait_for_each_backend(
    engine: Engine, backend: GatedBackend
) -> None:
    hold(engine, backend)
    waiting = [engine.submit(job(n, endpoint=True)) for n in (1, 2, 3)]
    waiting.append(engine.submit(job(4)))
    backend.go(5)
    assert [number_of(future) for future in waiting] == [1, 2, 3, 4]
    begun = [backend.begun.get(timeout=WAIT) for _ in waiting]
    # three wait behind the first of them, then two, then one
    assert [each.hurried for each in begun] == [True, True, False, False]
