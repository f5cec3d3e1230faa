"""What must not be committed: loops, and words placed after the audio."""

from __future__ import annotations

import pytest
from whisper_stream.streamer.jobs import DecodedWord, DecodeResult
from whisper_stream.streamer.session.guards import repeats_itself, within


def word(start: float, end: float) -> DecodedWord:
    return DecodedWord(text=" a", tokens=(1,), start=start, end=end, probability=1.0)


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([], 0),
        ([(0.0, 1.0), (1.0, 2.0)], 2),
        ([(0.0, 1.0), (1.96, 2.0)], 2),
        ([(0.0, 1.0), (2.0, 2.0)], 1),  # of no length, at the very end
        ([(0.0, 1.0), (2.0, 2.0), (2.4, 3.0)], 1),
        ([(2.0, 2.0)], 0),
        ([(2.0, 2.0), (0.5, 1.0)], 2),  # only the last ones: order is not changed
    ],
)
def test_words_after_the_audio_are_left_out(times: list[tuple[float, float]], kept: int) -> None:
    words = [word(*pair) for pair in times]
    assert within(words, 2.0) == tuple(words[:kept])


@pytest.mark.parametrize(
    ("ratio", "looped", "repeats"), [(1.0, False, False), (2.5, False, True), (1.0, True, True)]
)
def test_a_loop_is_known_by_its_text_or_how_it_was_stopped(
    ratio: float, looped: bool, repeats: bool
) -> None:
    result = DecodeResult(
        tokens=(), words=(), language="en", compression_ratio=ratio, looped=looped
    )
    assert repeats_itself(result) is repeats
