"""The rules that backends share: the load at which endpoints are hurried, context and beams; the simplest backend."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from whisper_stream.streamer.engine.backend import BackendConfig, BusyRule, SequentialBackend
from whisper_stream.streamer.engine.scheduler import QueuedJob
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

UPDATE = DecodeJob(audio=np.zeros(16_000, np.float32))
ENDPOINT = replace(UPDATE, endpoint=True)
HURRIED = replace(ENDPOINT, hurried=True)


class Failing(SequentialBackend):
    """Fails with ``error``, if there is one."""

    error: Exception | None = None

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        if self.error is not None:
            raise self.error
        return DecodeResult(tokens=(1,), words=(), language="en")


def test_all_conditions_of_a_busy_rule_must_hold() -> None:
    rule = BusyRule(taken=2, left=3, waited=0.5)
    assert rule.applies(taken=2, left=3, waited=0.5)
    assert not rule.applies(taken=1, left=3, waited=0.5)
    assert not rule.applies(taken=2, left=2, waited=0.5)
    assert not rule.applies(taken=2, left=3, waited=0.4)


@pytest.mark.parametrize(
    ("job", "context", "searched"),
    [(UPDATE, "trimmed", False), (ENDPOINT, "full", True), (HURRIED, "trimmed", False)],
)
def test_a_hurried_endpoint_is_decoded_as_an_update(
    job: DecodeJob, context: str, searched: bool
) -> None:
    config = BackendConfig()
    assert config.context(job) == context
    assert config.searches(job, 0.0, BusyRule(beams=False)) == searched
    assert not config.searches(job, 0.2, BusyRule(beams=False))
    assert not BackendConfig(endpoint_beams=1).searches(job, 0.0, BusyRule(beams=False))


def test_a_rule_may_leave_a_hurried_endpoint_its_beams() -> None:
    assert BackendConfig().searches(HURRIED, 0.0, BusyRule())


def test_one_job_is_run_a_step() -> None:
    backend = Failing()
    entry = QueuedJob(UPDATE, Future())
    assert (backend.room.jobs, backend.occupied) == (1, 0.0)
    assert backend.step() == []
    backend.admit([entry])
    assert (backend.room.jobs, backend.occupied) == (0, 1.0)
    ((finished, outcome),) = backend.step()
    assert finished is entry
    assert outcome().tokens == (1,)
    assert (backend.room.jobs, backend.occupied) == (1, 0.0)


def test_a_job_that_failed_is_abandoned() -> None:
    backend = Failing()
    backend.error = MemoryError()
    entry = QueuedJob(UPDATE, Future())
    backend.admit([entry])
    with pytest.raises(MemoryError):
        backend.step()
    assert backend.abandon() == [entry]
    assert backend.abandon() == []
    assert backend.room.jobs == 1
    assert not backend.is_fatal(MemoryError())
