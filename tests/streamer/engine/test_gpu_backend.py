"""Jobs of many streams in one batch give what each gives alone. Real weights, in float32, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from whisper_stream.model.decoding.fallback import FallbackPolicy
from whisper_stream.model.gpu.kernels import PlainKernels
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.engine.backend import BackendConfig
from whisper_stream.streamer.engine.cpu_backend import CpuBackend
from whisper_stream.streamer.engine.gpu_backend import GpuBackend, fitting_slots
from whisper_stream.streamer.engine.scheduler import QueuedJob
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

DATA = Path(__file__).parents[2] / "data"
GREEDY = BackendConfig(endpoint_beams=1)
SECOND = 16_000


@cache
def model(name: str) -> Whisper:
    return load_model(name, device="cpu", compute_type="float32")


@cache
def clip(name: str) -> NDArray[np.float32]:
    return load_audio(DATA / name)


def assert_same(batch: Sequence[DecodeResult], alone: Sequence[DecodeResult]) -> None:
    assert [one.tokens for one in batch] == [one.tokens for one in alone]
    for a, b in zip(batch, alone, strict=True):
        assert [word.text for word in a.words] == [word.text for word in b.words]
        for field in ("start", "end", "probability", "attended"):
            values = [[getattr(word, field) for word in one.words] for one in (a, b)]
            assert values[0] == pytest.approx(values[1], abs=1e-3)
        assert (a.language, a.looped, a.steps) == (b.language, b.looped, b.steps)
        assert (a.accepted_draft, a.temperature) == (b.accepted_draft, b.temperature)
        assert a.avg_logprob == pytest.approx(b.avg_logprob, abs=1e-4)
        assert a.no_speech_prob == pytest.approx(b.no_speech_prob, abs=1e-4)
        assert a.language_probability == pytest.approx(b.language_probability, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 5])
@pytest.mark.timeout(120)  # decodes real speech on a CPU, with beams
def test_a_mixed_batch_is_what_each_is_alone(beams: int) -> None:
    """Lengths, languages given and detected, prompts, prefixes, drafts, tasks, endpoints, silence."""
    config = BackendConfig(endpoint_beams=beams)
    alone = CpuBackend(model("base"), config)
    english, german = clip("en-speech-jfk.wav"), clip("de-read-portal.flac")
    heard = alone.decode([DecodeJob(audio=english[: 5 * SECOND], language="en")])[0].tokens
    prompt = tuple(alone.tokenizer.encode(" Mr. Quilter and his gospel"))
    wrong = tuple(alone.tokenizer.encode(" so my fellow Americans do not ask what your country"))
    quilter = clip("en-read-1272-quilter.flac")
    jobs = [
        DecodeJob(audio=english[: 7 * SECOND], language="en", draft=heard),
        DecodeJob(audio=german[: 4 * SECOND]),
        DecodeJob(audio=quilter, language="en", prompt=prompt, endpoint=True),
        DecodeJob(audio=clip("zh-read-jiaoyi.flac"), languages=("zh", "ja")),
        DecodeJob(audio=german, language="de", task="translate"),
        DecodeJob(audio=english, language="en", prefix=heard[:4], draft=heard[4:]),
        DecodeJob(audio=np.zeros(2 * SECOND, np.float32), language="en", endpoint=True),
        DecodeJob(audio=english[SECOND : 9 * SECOND], language="en", draft=wrong),
        DecodeJob(audio=german[: 3 * SECOND], language="en", switch_above=0.5, draft=heard),
    ]
    expected = alone.decode(jobs)
    assert len({one.language for one in expected}) == 3
    assert any(one.accepted_draft for one in expected)
    # three slots: rows wait, join when others leave, and find slots that were used before
    assert_same(GpuBackend(model("base"), config, slots=3).decode(jobs), expected)


def test_a_text_that_is_doubted_is_tried_again_beside_others() -> None:
    """At temperature 0 all tries are alike, so that they can be compared."""
    config = BackendConfig(
        endpoint_beams=1,
        temperatures=(0.0, 0.0, 0.0),
        fallback=FallbackPolicy(logprob_threshold=0.0, no_speech_threshold=1.0),
    )
    audio = clip("en-speech-jfk.wav")
    jobs = [
        DecodeJob(audio=audio[: seconds * SECOND], language="en", endpoint=endpoint)
        for seconds, endpoint in ((4, True), (5, False), (6, True))
    ]
    expected = CpuBackend(model("tiny.en"), config).decode(jobs)
    batch = GpuBackend(model("tiny.en"), config, slots=4)
    assert_same(batch.decode(jobs), expected)


def test_sampling_beside_others_gives_a_text() -> None:
    config = BackendConfig(endpoint_beams=1, temperatures=(0.4,))
    audio = clip("en-speech-jfk.wav")
    jobs = [
        DecodeJob(audio=audio, language="en", endpoint=True),
        DecodeJob(audio=audio, language="en"),
    ]
    batch = GpuBackend(model("tiny.en"), config, slots=2)
    warm, cold = batch.decode(jobs)
    assert (warm.temperature, cold.temperature) == (0.4, 0.0)
    assert "country" in "".join(word.text for word in warm.words)
    again, _ = batch.decode(jobs)
    assert again.tokens == warm.tokens  # the seed depends on the place in the text alone


def test_slots_suit_the_memory_that_is_free() -> None:
    tiny = model("tiny.en")
    own = 2 * 4 * 384 * (1500 + 448 + 64) * 4  # keys and values, layers, state, places, bytes
    assert fitting_slots(tiny, 100 * own) == 40
    assert fitting_slots(tiny, 0) == 4
    assert fitting_slots(tiny, 10**15) == 128


def test_jobs_join_and_leave_between_steps() -> None:
    audio = clip("en-speech-jfk.wav")
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=3)
    long = QueuedJob(DecodeJob(audio=audio, language="en"), Future())
    short = QueuedJob(DecodeJob(audio=audio[:SECOND], language="en"), Future())
    backend.admit([long])
    assert backend.occupied == pytest.approx(1 / 3)
    steps: dict[QueuedJob, int] = {}
    for turn in range(200):
        if turn == 3:
            backend.admit([short])
        steps.update((entry, outcome().steps) for entry, outcome in backend.step())
        if len(steps) == 2:
            break
    assert steps[long] > steps[short]
    assert backend.occupied == 0.0 and backend.room.jobs == 3


def test_what_is_abandoned_leaves_nothing_behind() -> None:
    audio = clip("en-speech-jfk.wav")
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=2)
    job = DecodeJob(audio=audio[: 4 * SECOND], language="en")
    expected = backend.decode_one(job)
    entries = [QueuedJob(job, Future()) for _ in range(2)]
    backend.admit(entries)
    backend.step()
    assert backend.abandon() == entries
    assert backend.occupied == 0.0
    assert_same([backend.decode_one(job)], [expected])


def test_endpoints_beyond_what_is_searched_are_decoded_greedily_and_with_their_own_audio() -> None:
    audio = clip("en-read-7902-cutter.flac")
    jobs = [DecodeJob(audio=audio, language="en", endpoint=True) for _ in range(3)]
    batch = GpuBackend(model("tiny.en"), slots=3, searches=1, whole_at_once=1)
    results = batch.decode(jobs)
    trimmed = BackendConfig(endpoint_beams=1, endpoint_context="trimmed")
    searched = CpuBackend(model("tiny.en")).decode(jobs[:1])
    greedy = CpuBackend(model("tiny.en"), trimmed).decode(jobs[:1])
    assert_same(results, [*searched, *greedy, *greedy])


def test_an_endpoint_in_a_hurry_is_decoded_as_an_update_is() -> None:
    job = DecodeJob(
        audio=clip("en-read-7902-cutter.flac"), language="en", endpoint=True, hurried=True
    )
    trimmed = BackendConfig(endpoint_beams=1, endpoint_context="trimmed")
    batch = GpuBackend(model("tiny.en"), slots=1, searches=1)
    expected = CpuBackend(model("tiny.en"), trimmed).decode([job])
    assert_same(batch.decode([job]), expected)


def test_small_waves_leave_room_for_passes_between_them() -> None:
    audio = clip("en-speech-jfk.wav")
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=4)
    job = DecodeJob(audio=audio[: 8 * SECOND], language="en")
    backend.admit([QueuedJob(job, Future())])
    rooms = []
    while backend.occupied:
        rooms.append(backend.room.jobs)
        backend.step()
    # while it is encoded, and four passes long; then others may come, who need not wait for its end
    assert rooms[:5] == [0] * 5 and set(rooms[5:]) == {3}
    assert backend.room.jobs == 4
    assert backend.room.seconds > 60.0


class FailingKernels(PlainKernels):
    """Run out of memory where they are told to: in the encoder's layers, or in the choice of tokens."""

    fail = ""

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        if self.fail == "layers":
            raise torch.OutOfMemoryError("injected")
        return super().add_norm(x, delta, norm)

    def choose(self, *tables: Tensor) -> tuple[Tensor, Tensor]:
        if self.fail == "choice":
            raise torch.OutOfMemoryError("injected")
        return super().choose(*tables)


def test_a_step_that_fails_gives_up_every_job() -> None:
    """Also those that the step had in hand: nobody may wait for a result that never comes."""
    kernels = FailingKernels()
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=4, kernels=kernels)
    job = DecodeJob(audio=clip("en-speech-jfk.wav")[:SECOND], language="en")
    entries = [QueuedJob(job, Future()) for _ in range(3)]
    backend.admit(entries[:2])
    backend.step()
    backend.admit(entries[2:])
    kernels.fail = "choice"
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(3):
            backend.step()
    assert backend.abandon() == entries
    assert backend.occupied == 0.0
    kernels.fail = ""
    assert backend.decode_one(job).tokens


def test_audio_that_cannot_be_encoded_takes_no_slot() -> None:
    kernels = FailingKernels()
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=2, kernels=kernels)
    job = DecodeJob(audio=clip("en-speech-jfk.wav")[:SECOND], language="en")
    kernels.fail = "layers"
    with pytest.raises(torch.OutOfMemoryError):
        backend.admit([QueuedJob(job, Future())])
    assert backend.occupied == 0.0 and backend.room.jobs == 2
    kernels.fail = ""
    assert backend.decode_one(job).tokens


def test_only_a_lost_gpu_is_fatal() -> None:
    backend = GpuBackend(model("tiny.en"), GREEDY, slots=1)
    assert backend.is_fatal(torch.AcceleratorError("CUDA error: an illegal memory access"))
    assert not backend.is_fatal(torch.OutOfMemoryError())
    assert not backend.is_fatal(RuntimeError())
