"""The order of the queue, and the jobs that are taken together."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
from whisper_stream.streamer.engine.scheduler import JobQueue
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult


def put(queue: JobQueue, number: int, *, seconds: float = 1.0) -> Future[DecodeResult]:
    future: Future[DecodeResult] = Future()
    audio = np.zeros(round(seconds * 16_000), np.float32)
    queue.put(DecodeJob(audio=audio, prompt=(number,)), future)
    return future


def take(queue: JobQueue, most: int, seconds: float = float("inf")) -> list[int]:
    return [entry.job.prompt[0] for entry in queue.take(most, seconds)]


def test_no_more_jobs_and_no_more_audio_are_taken_than_there_is_room_for() -> None:
    queue = JobQueue()
    for number in range(6):
        put(queue, number, seconds=2.0)
    assert take(queue, 0) == []
    assert take(queue, 2) == [0, 1]
    assert take(queue, 10, seconds=5.0) == [2, 3]
    assert take(queue, 10, seconds=1.0) == [4]  # a single job may be longer
    assert len(queue) == 1


def test_jobs_that_were_cancelled_take_no_room() -> None:
    queue = JobQueue()
    futures = [put(queue, number) for number in range(4)]
    assert futures[0].cancel() and futures[2].cancel()
    assert take(queue, 2) == [1, 3]
    assert futures[1].running()
    assert not futures[1].cancel()


def test_what_is_cleared_is_returned_in_order() -> None:
    queue = JobQueue()
    for number in range(3):
        put(queue, number)
    assert [entry.job.prompt for entry in queue.clear()] == [(0,), (1,), (2,)]
    assert len(queue) == 0
