"""Texts that must not be committed: loops, and words placed after the audio."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Commit, Partial
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult
from whisper_stream.streamer.session.guards import drop_words_after_audio, repeats_itself

from ...helpers.scripted import Played, scripted, word_text


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
    assert drop_words_after_audio(words, 2.0) == tuple(words[:kept])


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


@pytest.mark.parametrize("sign", [{"looped": True}, {"compression_ratio": 2.5}])
def test_a_loop_is_neither_committed_nor_shown_and_tried_once_without_prompt(
    sign: dict[str, bool | float],
) -> None:
    script = scripted([0.1] * 14, tail=2.0)
    loops: list[int] = []  # the jobs that were answered with a loop

    def change(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        played = len(stream.jobs) - 1
        if job.prefix and not loops:
            loops.append(played)
            return replace(result, **sign)  # type: ignore[arg-type]
        return result

    stream = Played(StreamConfig(language="en", prompt="names"), change)
    stream.play(script.audio).finish()
    (loop,) = loops
    assert stream.answers[loop] == []
    looped, again, later = stream.jobs[loop : loop + 3]
    assert looped.prompt != ()
    assert again.prompt == () and again.draft == ()
    assert again.prefix == looped.prefix  # what is committed stays
    assert np.array_equal(again.audio, looped.audio)
    assert stream.fed_at[loop + 1] == stream.fed_at[loop]  # at once
    assert later.prompt == looped.prompt
    assert [word.text for word in stream.ledger.words] == [word_text(w) for w, _ in script.words]


def test_a_loop_that_stays_waits_for_more_audio() -> None:
    script = scripted([0.1] * 14, tail=2.0)

    def change(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        return result if job.endpoint else replace(result, looped=True)

    stream = Played(StreamConfig(language="en", prompt="names"), change).play(script.audio).finish()
    updates = [job for job in stream.jobs if not job.endpoint]
    assert len(updates) > 4
    assert [job.prompt == () for job in updates] == [False, True] * (len(updates) // 2)
    for first, second in zip(stream.fed_at[1:-1:2], stream.fed_at[2::2], strict=False):
        assert second > first  # no third try of the same audio
    assert stream.of(Partial) == []
    assert len(stream.of(Commit)) == 1  # of the end, which the ladder of the decoder guards
