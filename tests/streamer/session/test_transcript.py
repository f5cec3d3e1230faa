"""Committed words: placed on the stream's clock, closed in segments, scrolled into the prompt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.jobs import DecodedWord, DecodeResult
from whisper_stream.streamer.session.transcript import MAX_PROMPT_TOKENS, Transcript

SECOND = 16_000


def word(text: str, start: float, end: float, *tokens: int) -> DecodedWord:
    return DecodedWord(text=text, tokens=tokens or (1,), start=start, end=end, probability=0.5)


def transcript(prompt: tuple[int, ...] = (), **options: bool) -> Transcript:
    return Transcript(StreamConfig(**options), prompt)  # type: ignore[arg-type]


def test_words_are_placed_by_the_window() -> None:
    placed = transcript().commit([word(" a", 0.5, 1.0), word(" b", 1.0, 1.25)], 32_000, 64_000)
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
    ours = transcript()
    start, end, last = 0, 0, 0
    count = 0
    for step, times in windows:
        start, end = start + step, max(end, start + step) + SECOND
        placed = ours.commit([word(" x", a, b) for a, b in times], start, end)
        count += len(placed)
        for item in placed:
            assert max(last, start) <= item.start_sample <= item.end_sample <= end
            last = item.end_sample
    assert ours.count == count


def test_the_prefix_is_what_is_committed_in_the_window() -> None:
    ours = transcript()
    ours.commit([word(" a", 0, 1, 1, 2), word(" b", 1, 2, 3), word(" c", 2, 3, 4)], 0, 4 * SECOND)
    assert ours.prefix == (1, 2, 3, 4)
    assert ours.boundary_after(SECOND) == 2 * SECOND
    assert ours.last_boundary() == 3 * SECOND
    ours.close_segment("en", None)
    ours.scroll(2 * SECOND)
    assert [*ours.prefix] == [4]
    assert [*ours.prompt()] == [1, 2, 3]
    ours.scroll(None)
    assert [*ours.prefix] == []
    assert [*ours.prompt()] == [1, 2, 3, 4]
    assert ours.last_boundary() is None


def test_segments_hold_each_word_once() -> None:
    ours = transcript()
    assert ours.close_segment("en", None) == []
    first = ours.commit([word(" a", 0, 1), word(" b", 1, 2)], 0, 4 * SECOND)
    (one,) = ours.close_segment("en", None)
    assert (one.segment_id, one.words, one.temperature) == (1, first, 0.0)
    assert one.avg_logprob == pytest.approx(math.log(0.5))
    ours.scroll(SECOND)  # " b" stays in the window, but is closed
    second = ours.commit([word(" c", 2, 3)], 0, 4 * SECOND)
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


def said(ours: Transcript, count: int) -> None:
    ours.commit([word(" x", 0, 0, 1000 + i) for i in range(count)], 0, SECOND)
    ours.close_segment("en", None)
    ours.scroll(None)


@pytest.mark.parametrize("given_tokens", [0, 5, 100, 400])
@pytest.mark.parametrize("room", [0, 1, 50, 223, 1000])
def test_the_prompt_keeps_the_latest_and_never_exceeds_its_room(
    given_tokens: int, room: int
) -> None:
    ours = transcript(tuple(range(given_tokens)))
    said(ours, 500)
    prompt = ours.prompt(room)
    assert len(prompt) == min(room, MAX_PROMPT_TOKENS)
    if room > 1:
        assert prompt[-1] == 1499
    if room > 1 and given_tokens:
        assert given_tokens - 1 in prompt


def test_a_prompt_without_conditioning_is_the_clients_alone() -> None:
    ours = transcript(tuple(range(300)), condition_on_previous=False)
    said(ours, 50)
    assert ours.prompt() == tuple(range(300 - MAX_PROMPT_TOKENS, 300))
    assert ours.prompt(0) == ()


def test_forgetting_leaves_the_clients_prompt() -> None:
    ours = transcript((7, 8))
    said(ours, 5)
    ours.forget_prompt()
    assert ours.prompt() == (7, 8)
