"""Word times against the reference: with real weights, and for any alignment."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import whisper.timing
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.decoding.inference import EncodedAudio
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.transcription import word_times as timing
from whisper_stream.model.transcription.segments import Segment
from whisper_stream.model.transcription.word_times import (
    WordTiming,
    add_word_timestamps,
    find_alignment,
)
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.tokenizer import get_tokenizer

from ...helpers.reference import our_model, reference_model

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

DATA = Path(__file__).parents[2] / "data"
EOT = 50256


@pytest.mark.parametrize(
    ("name", "clip", "language", "text"),
    [
        (
            "tiny.en",
            "en-read-7902-cutter.flac",
            None,
            " I am from the cutter, lying off the coast.",
        ),
        ("base", "zh-read-jiaoyi.flac", "zh", "甚至出现交易几乎停滞的情况"),
    ],
)
def test_alignment_is_the_references(name: str, clip: str, language: str | None, text: str) -> None:
    audio = load_audio(DATA / clip)
    mel = log_mel_spectrogram(audio, padding=480_000)[:, :3000]
    frames = len(audio) // 160
    ours, theirs = our_model(name), reference_model(name)
    own = get_tokenizer(ours.is_multilingual, language=language)
    other = whisper.tokenizer.get_tokenizer(theirs.is_multilingual, language=language)
    tokens = own.encode(text)
    with torch.inference_mode():
        encoded = EncodedAudio.from_mel(ours, mel[None])
        got = find_alignment(ours, own, tokens, encoded, frames)
        expected = whisper.timing.find_alignment(theirs, other, tokens, mel, frames)
    assert [(one.word, one.tokens) for one in got] == [(one.word, one.tokens) for one in expected]
    for one, same in zip(got, expected, strict=True):
        assert one.start == pytest.approx(same.start, abs=0.02)
        assert one.end == pytest.approx(same.end, abs=0.02)
        assert one.probability == pytest.approx(same.probability, abs=1e-4)


def test_no_text_has_no_words() -> None:
    tokenizer = get_tokenizer(False)
    audio = EncodedAudio(our_model("tiny.en"), torch.zeros(1, 1500, 384))
    assert find_alignment(our_model("tiny.en"), tokenizer, [], audio, 3000) == []


_WORDS = [" So", " it", " goes", ".", ",", ' "', '"', "!", " (", ")", " -", "、", " well"]


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[tuple[float, float, list[int]]], list[Any], float]:
    """Segments (start, end, token counts of their words), timings of all words, and the last speech."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    seek = draw(st.integers(0, 9000))
    offset = seek * 0.01
    at, timings, segments = 0.0, [], []
    for count in counts:
        begin = at + draw(st.sampled_from([-0.7, 0.0, 0.3, 2.0]))
        sizes = []
        for _ in range(count):
            length = draw(st.sampled_from([0.0, 0.02, 0.2, 0.3, 1.0, 2.4, 5.0]))
            gap = draw(st.sampled_from([0.0, 0.0, 0.4]))
            size = draw(st.integers(1, 3))
            word = draw(st.sampled_from(_WORDS))
            timings.append((word, size, at + gap, at + gap + length))
            sizes.append(size)
            at += gap + length
        end = at + draw(st.sampled_from([-0.8, 0.0, 1.0]))
        segments.append((max(0.0, offset + begin), offset + end, sizes))
    last = draw(st.sampled_from([0.0, offset - 3.0, offset]))
    return segments, timings, max(0.0, last)


@settings(max_examples=150, deadline=None)
@given(window=windows(), seek=st.sampled_from([0, 1234]))
def test_words_are_fitted_to_segments_as_by_the_reference(window: Any, seek: int) -> None:
    segments, timings, last = window
    theirs = [
        whisper.timing.WordTiming(word, [7] * size, start, end, 0.5)
        for word, size, start, end in timings
    ]
    mine = [
        WordTiming(word=word, tokens=[7] * size, start=start, end=end, probability=0.5)
        for word, size, start, end in timings
    ]
    expected = [
        {"seek": seek, "start": start, "end": end, "tokens": [EOT + 5] + [7] * sum(sizes)}
        for start, end, sizes in segments
    ]
    got = [_segment(seek, start, end, sum(sizes)) for start, end, sizes in segments]
    with mock.patch.object(whisper.timing, "find_alignment", lambda *_, **__: theirs):
        whisper.timing.add_word_timestamps(
            segments=expected,
            model=None,
            tokenizer=mock.Mock(eot=EOT),
            mel=None,
            num_frames=3000,
            last_speech_timestamp=last,
        )
    with mock.patch.object(timing, "find_alignment", lambda *_: mine):
        nothing: Any = None
        add_word_timestamps(
            got,
            nothing,
            mock.Mock(eot=EOT),
            nothing,
            3000,
            time_offset=seek * 0.01,
            last_speech_timestamp=last,
        )
    for one, same in zip(got, expected, strict=True):
        assert (one.start, one.end) == pytest.approx((same["start"], same["end"]))
        assert one.as_dict()["words"] == [
            {**word, "start": pytest.approx(word["start"]), "end": pytest.approx(word["end"])}
            for word in same["words"]
        ]


def _segment(seek: int, start: float, end: float, tokens: int) -> Segment:
    return Segment(
        seek=seek,
        start=start,
        end=end,
        text="",
        tokens=[EOT + 5] + [7] * tokens,
        temperature=0.0,
        avg_logprob=0.0,
        compression_ratio=1.0,
        no_speech_prob=0.0,
    )
