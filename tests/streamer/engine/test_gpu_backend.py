"""Jobs of many streams in one batch give what each gives alone. Real weights, in float32, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.engine.backend import BackendConfig
from whisper_stream.streamer.engine.cpu_backend import WhisperBackend
from whisper_stream.streamer.engine.gpu_backend import BatchBackend, fitting_slots
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

DATA = Path(__file__).parents[2] / "data"
GREEDY = BackendConfig(final_beams=1)
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
def test_a_mixed_batch_is_what_each_is_alone(beams: int) -> None:
    """Lengths, languages given and detected, prompts, prefixes, drafts, tasks, endpoints, silence."""
    config = BackendConfig(final_beams=beams)
    alone = WhisperBackend(model("base"), config)
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
    assert_same(BatchBackend[int](model("base"), config, slots=3).decode(jobs), expected)


def test_a_text_that_is_doubted_is_tried_again_beside_others() -> None:
    """At temperature 0 all tries are alike, so that they can be compared."""
    config = BackendConfig(
        final_beams=1, temperatures=(0.0, 0.0, 0.0), logprob_threshold=0.0, no_speech_threshold=1.0
    )
    audio = clip("en-speech-jfk.wav")
    jobs = [
        DecodeJob(audio=audio[: seconds * SECOND], language="en", endpoint=endpoint)
        for seconds, endpoint in ((4, True), (5, False), (6, True))
    ]
    expected = WhisperBackend(model("tiny.en"), config).decode(jobs)
    batch = BatchBackend[int](model("tiny.en"), config, slots=4)
    assert_same(batch.decode(jobs), expected)


def test_sampling_beside_others_gives_a_text() -> None:
    config = BackendConfig(final_beams=1, temperatures=(0.4,))
    audio = clip("en-speech-jfk.wav")
    jobs = [
        DecodeJob(audio=audio, language="en", endpoint=True),
        DecodeJob(audio=audio, language="en"),
    ]
    batch = BatchBackend[int](model("tiny.en"), config, slots=2)
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


def test_jobs_join_and_leave_between_passes() -> None:
    audio = clip("en-speech-jfk.wav")
    batch = BatchBackend[str](model("tiny.en"), GREEDY, slots=3)
    long = DecodeJob(audio=audio, language="en")
    short = DecodeJob(audio=audio[:SECOND], language="en")
    batch.admit([("long", long)])
    assert not batch.idle
    done: list[str] = []
    passes: dict[str, int] = {}
    for turn in range(200):
        if turn == 3:
            batch.admit([("short", short)])
        for key, outcome in batch.advance():
            done.append(key)
            passes[key] = outcome().steps
        if len(done) == 2:
            break
    assert sorted(done) == ["long", "short"]
    assert passes["long"] > passes["short"]
    assert batch.idle and batch.room == 3


def test_what_is_given_up_leaves_nothing_behind() -> None:
    audio = clip("en-speech-jfk.wav")
    batch = BatchBackend[str](model("tiny.en"), GREEDY, slots=2)
    job = DecodeJob(audio=audio[: 4 * SECOND], language="en")
    (expected,) = batch.decode([job])
    batch.admit([("a", job), ("b", job)])
    batch.advance()
    assert sorted(batch.abandon()) == ["a", "b"]
    assert batch.idle
    assert_same(batch.decode([job]), [expected])


def test_endpoints_beyond_what_is_searched_are_decoded_greedily_and_with_their_own_audio() -> None:
    audio = clip("en-read-7902-cutter.flac")
    jobs = [DecodeJob(audio=audio, language="en", endpoint=True) for _ in range(3)]
    batch = BatchBackend[int](model("tiny.en"), slots=3, searches=1, whole_at_once=1)
    results = batch.decode(jobs)
    trimmed = BackendConfig(final_beams=1, final_context="trimmed")
    searched = WhisperBackend(model("tiny.en")).decode(jobs[:1])
    greedy = WhisperBackend(model("tiny.en"), trimmed).decode(jobs[:1])
    assert_same(results, [*searched, *greedy, *greedy])


def test_an_endpoint_in_a_hurry_is_decoded_as_an_update_is() -> None:
    job = DecodeJob(
        audio=clip("en-read-7902-cutter.flac"), language="en", endpoint=True, hurried=True
    )
    trimmed = BackendConfig(final_beams=1, final_context="trimmed")
    batch = BatchBackend[int](model("tiny.en"), slots=1, searches=1)
    expected = WhisperBackend(model("tiny.en"), trimmed).decode([job])
    assert_same(batch.decode([job]), expected)


def test_small_waves_leave_room_for_passes_between_them() -> None:
    audio = clip("en-speech-jfk.wav")
    batch = BatchBackend[str](model("tiny.en"), GREEDY, slots=4)
    batch.admit([("long", DecodeJob(audio=audio[: 8 * SECOND], language="en"))])
    rooms = []
    while not batch.idle:
        rooms.append(batch.room)
        batch.advance()
    # while it is encoded, and four passes long; then others may come, who need not wait for its end
    assert rooms[:5] == [0] * 5 and set(rooms[5:]) == {3}
    assert batch.room == 4


def test_a_pass_that_fails_gives_up_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that the pass had in hand: nobody may wait for a result that never comes."""
    batch = BatchBackend[str](model("tiny.en"), GREEDY, slots=4)
    audio = clip("en-speech-jfk.wav")
    batch.admit([(key, DecodeJob(audio=audio[:SECOND], language="en")) for key in "ab"])
    batch.advance()
    batch.admit([("c", DecodeJob(audio=audio[:SECOND], language="en"))])

    def broken(*args: object) -> None:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(batch._decoder, "step", broken)
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(3):
            batch.advance()
    assert sorted(batch.abandon()) == ["a", "b", "c"]
    assert batch.idle


def test_audio_that_cannot_be_encoded_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = BatchBackend[str](model("tiny.en"), GREEDY, slots=2)
    job = DecodeJob(audio=clip("en-speech-jfk.wav")[:SECOND], language="en")

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("injected")

    with monkeypatch.context() as patched:
        patched.setattr(batch._encoder, "start", full)
        with pytest.raises(torch.OutOfMemoryError):
            batch.admit([("a", job)])
    assert batch.idle and batch.room == 2
    assert batch.decode([job])[0].tokens
