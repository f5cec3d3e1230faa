"""Committed words: placed on the stream's clock, closed in segments, and at last part of the prompt."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.commands import Configure
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.jobs import DecodedWord, DecodeResult
from whisper_stream.streamer.session.transcript import MAX_PROMPT_TOKENS, CommittedText

from ...helpers.scripted import ENGLISH, FakeCodec, Played, scripted

SECOND = 16_000


def word(text: str, start: float, end: float, *tokens: int) -> DecodedWord:
    return DecodedWord(text=text, tokens=tokens or (1,), start=start, end=end, probability=0.5)


def letters(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) for letter in text)


def text_after(prompt: str = "", *, condition_on_previous: bool = True) -> CommittedText:
    config = StreamConfig(prompt=prompt, condition_on_previous=condition_on_previous)
    return CommittedText(config, FakeCodec())


def test_words_are_placed_by_the_window() -> None:
    placed = text_after().append([word(" a", 0.5, 1.0), word(" b", 1.0, 1.25)], 32_000, 64_000)
    assert [(w.text, w.start_sample, w.end_sample) for w in placed] == [
        (" a", 40_000, 48_000),
        (" b", 48_000, 52_000),
    ]


TIMES = st.floats(-2.0, 6.0)


@given(
    windows=st.lists(
        st.tuples(st.integers(0, SECOND), st.lists(st.tuples(TIMES, TIMES), max_size=6)),
        max_size=6,
    )
)
def test_whatever_the_times_words_stay_in_order_and_inside(
    windows: list[tuple[int, list[tuple[float, float]]]],
) -> None:
    ours = text_after()
    start, end, last = 0, 0, 0
    count = 0
    for step, times in windows:
        start, end = start + step, max(end, start + step) + SECOND
        placed = ours.append([word(" x", a, b) for a, b in times], start, end)
        count += len(placed)
        for item in placed:
            assert max(last, start) <= item.start_sample <= item.end_sample <= end
            last = item.end_sample
    assert ours.count == count


def test_the_prefix_is_what_is_committed_in_the_window() -> None:
    ours = text_after()
    ours.append([word(" a", 0, 1, 1, 2), word(" b", 1, 2, 3), word(" c", 2, 3, 4)], 0, 4 * SECOND)
    assert ours.prefix == (1, 2, 3, 4)
    assert ours.find_end_after(SECOND) == 2 * SECOND
    assert ours.end_sample == 3 * SECOND
    ours.close_segment("en", None)
    ours.move_window(2 * SECOND)
    assert [*ours.prefix] == [4]
    assert [*ours.make_prompt()] == [1, 2, 3]
    ours.leave_window()
    assert [*ours.prefix] == []
    assert [*ours.make_prompt()] == [1, 2, 3, 4]
    assert ours.end_sample is None


def test_segments_hold_each_word_once() -> None:
    ours = text_after()
    assert ours.close_segment("en", None) == []
    first = ours.append([word(" a", 0, 1), word(" b", 1, 2)], 0, 4 * SECOND)
    (one,) = ours.close_segment("en", None)
    assert (one.segment_id, one.words, one.temperature) == (1, first, 0.0)
    assert one.avg_logprob == pytest.approx(math.log(0.5))
    ours.move_window(SECOND)  # " b" stays in the window, but is closed
    second = ours.append([word(" c", 2, 3)], 0, 4 * SECOND)
    result = DecodeResult(
        tokens=(),
        words=(),
        language="de",
        no_speech_prob=0.3,
        compression_ratio=1.5,
        temperature=0.2,
    )
    (two,) = ours.close_segment("de", result)
    assert (two.segment_id, two.words, two.language) == (2, second, "de")
    assert (two.no_speech_prob, two.compression_ratio, two.temperature) == (0.3, 1.5, 0.2)
    assert (two.start_sample, two.end_sample) == (2 * SECOND, 3 * SECOND)
    assert ours.close_segment("de", None) == []


def commit(ours: CommittedText, count: int) -> None:
    ours.append([word(" x", 0, 0, 1000 + i) for i in range(count)], 0, SECOND)
    ours.close_segment("en", None)
    ours.leave_window()


@pytest.mark.parametrize("given_tokens", [0, 5, 100, 400])
@pytest.mark.parametrize("room", [0, 1, 50, 223, 1000])
def test_the_prompt_keeps_the_latest_and_never_exceeds_its_room(
    given_tokens: int, room: int
) -> None:
    ours = text_after("".join(map(chr, range(given_tokens))))
    commit(ours, 500)
    prompt = ours.make_prompt(room)
    assert len(prompt) == min(room, MAX_PROMPT_TOKENS)
    if room > 1:
        assert prompt[-1] == 1499
    if room > 1 and given_tokens:
        assert given_tokens - 1 in prompt


def test_a_prompt_without_conditioning_is_the_clients_alone() -> None:
    ours = text_after("".join(map(chr, range(300))), condition_on_previous=False)
    commit(ours, 50)
    assert ours.make_prompt() == tuple(range(300 - MAX_PROMPT_TOKENS, 300))
    assert ours.make_prompt(0) == ()


def test_forgetting_leaves_the_clients_prompt() -> None:
    ours = text_after("ab")
    commit(ours, 5)
    ours.forget_history()
    assert ours.make_prompt() == letters("ab")


# In a stream

LONG = scripted([0.1] * 60, tail=4.0)


def windows(**options: str | bool) -> StreamConfig:
    return replace(ENGLISH, soft_window=3.0, max_window=6.0, **options)  # type: ignore[arg-type]


def test_hotwords_are_in_every_prompt_behind_what_the_client_said() -> None:
    stream = Played(windows(prompt="ab", hotwords="Nguyen")).play(LONG.audio).finish()
    front = letters("ab Nguyen")
    assert {job.prompt[: len(front)] for job in stream.jobs} == {front}
    assert any(len(job.prompt) > len(front) for job in stream.jobs)


def test_without_carrying_the_prompt_is_for_the_first_window_alone() -> None:
    config = windows(prompt="ab", hotwords="Nguyen", carry_prompt=False)
    stream = Played(config).play(LONG.audio).finish()
    with_prompt = [job.prompt[:2] == letters("ab") for job in stream.jobs]
    assert with_prompt[0] and not with_prompt[-1]
    assert with_prompt == sorted(with_prompt, reverse=True)  # once gone, it stays away
    start = with_prompt.index(False)
    assert stream.jobs[start].prefix != stream.jobs[start - 1].prefix  # a window was left
    assert all(job.prompt[:7] == letters(" Nguyen") for job in stream.jobs[start:])


def test_hotwords_and_languages_can_be_changed_in_between() -> None:
    stream = Played(StreamConfig(hotwords="Nguyen"))
    stream.play(LONG.audio[: 4 * SAMPLE_RATE])
    before = len(stream.jobs)
    stream.session.request(Configure(hotwords="Kim", languages=("en", "ko")))
    stream.play(LONG.audio[4 * SAMPLE_RATE :]).finish()
    assert {(job.prompt[:7], job.languages) for job in stream.jobs[:before]} == {
        (letters(" Nguyen"), ())
    }
    assert {(job.prompt[:4], job.languages) for job in stream.jobs[before:]} == {
        (letters(" Kim"), ("en", "ko"))
    }
