"""The long-form state machine against the reference's loop, for any texts the model might give.

Both sides get the same made-up results, window by window, and the same made-up word times.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import whisper
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whisper_stream.model.decoding.fallback import FallbackPolicy, options_ladder
from whisper_stream.model.decoding.task import DecodingResult
from whisper_stream.model.transcription import long_form as transcription_state
from whisper_stream.model.transcription.long_form import AudioFile, LongForm, TranscribeOptions
from whisper_stream.model.transcription.segments import Segment, Transcript, Word
from whisper_stream.model.whisper.tokenizer import get_tokenizer

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

REFERENCE = sys.modules["whisper.transcribe"]
TOKENIZER = get_tokenizer(False)
BEGIN = TOKENIZER.timestamp_begin
TEXTS = [TOKENIZER.encode(text) for text in (" So it goes.", " Well", " ", " (one) two", ".")]


class Script:
    """Results, one a window, from a seed. The prompts it was given are kept."""

    def __init__(self, seed: int, *, temperature: float) -> None:
        self.random = random.Random(seed)
        self.temperature = temperature
        self.prompts: list[list[int]] = []

    def next(self, prompt: list[int]) -> dict[str, Any]:
        self.prompts.append(prompt)
        pick = self.random.choice
        return {
            "tokens": self._tokens(),
            "avg_logprob": pick([-0.3, -0.3, -1.5]),
            "no_speech_prob": pick([0.1, 0.1, 0.7]),
            "compression_ratio": 1.5,
            "temperature": pick([0.0, self.temperature]),
        }

    def _tokens(self) -> list[int]:
        """Text between timestamps that rise; now and then without any, or open at the end."""
        pick, tokens, at = self.random.choice, [], self.random.randint(0, 50)
        if self.random.random() < 0.1:
            return list(pick(TEXTS)) if pick([True, False]) else []
        for _ in range(self.random.randint(1, 4)):
            end = at + self.random.randint(1, 400)
            tokens += [BEGIN + at, *pick(TEXTS), BEGIN + min(end, 1500)]
            at = min(end, 1499)
        ending = pick(["alone", "pair", "open", "no end"])
        if ending == "no end":
            return tokens[:-1]
        return tokens + {"alone": [], "pair": [BEGIN + at], "open": [BEGIN + at, *TEXTS[0]]}[ending]


@dataclass
class FakeModel:
    """What the reference asks of a model."""

    script: Script
    device = torch.device("cpu")
    dims = our_dims = mock.Mock(n_mels=80, n_audio_ctx=1500, n_text_ctx=448)
    is_multilingual = False
    num_languages = 99

    def decode(self, mel: torch.Tensor, options: whisper.DecodingOptions) -> Any:
        assert mel.shape == (80, 3000)
        return whisper.DecodingResult(
            audio_features=mel, language="en", **self.script.next(list(options.prompt or []))
        )


def words_between(
    tokens: list[int], start: float, end: float, noise: random.Random
) -> list[tuple[str, float, float, float]]:
    count = min(4, len([token for token in tokens if token < TOKENIZER.eot]))
    step = (end - start) / max(1, count)
    return [
        (
            noise.choice([" word", ".", " two"]),
            round(start + step * at + noise.choice([0.0, 0.0, 0.5]), 2),
            round(start + step * (at + 1), 2),
            noise.choice([0.9, 0.9, 0.1]),
        )
        for at in range(count)
    ]


def reference_words(noise: random.Random) -> Any:
    def add(*, segments: list[dict[str, Any]], **_: Any) -> None:
        for segment in segments:
            words = words_between(segment["tokens"], segment["start"], segment["end"], noise)
            keys = ("word", "start", "end", "probability")
            segment["words"] = [dict(zip(keys, word, strict=True)) for word in words]

    return add


def our_words(noise: random.Random) -> Any:
    def add(_: Any, __: Any, segments: list[Segment], *___: Any) -> None:
        for segment in segments:
            words = words_between(segment.tokens, segment.start, segment.end, noise)
            segment.words = [
                Word(word=word, start=start, end=end, probability=chance)
                for word, start, end, chance in words
            ]

    return add


def run_reference(script: Script, frames: int, seed: int, **options: Any) -> dict[str, Any]:
    model: Any = FakeModel(script)
    mel = torch.zeros(80, frames + 3000)
    with (
        mock.patch.object(REFERENCE, "log_mel_spectrogram", lambda *_, **__: mel),
        mock.patch.object(REFERENCE, "add_word_timestamps", reference_words(random.Random(seed))),
    ):
        result: dict[str, Any] = REFERENCE.transcribe(
            model, None, fp16=False, temperature=0.0, language="en", **options
        )
    return result


def run_ours(script: Script, frames: int, seed: int, **options: Any) -> list[dict[str, Any]]:
    thresholds = {
        name: options.pop(name)
        for name in ("logprob_threshold", "no_speech_threshold")
        if name in options
    }
    clips = tuple((round(a * 100), round(b * 100)) for a, b in options.pop("clips"))
    model: Any = FakeModel(script)
    recording = AudioFile(
        model=model, tokenizer=TOKENIZER, mel=torch.zeros(80, frames + 3000), clips=clips
    )
    settings = TranscribeOptions(policy=FallbackPolicy(**thresholds), **options)
    transcript = Transcript()
    machine = LongForm(recording, options_ladder(0.0, {}), settings, transcript)

    def decode(*_: Any, prompt: list[int]) -> list[DecodingResult]:
        features = torch.zeros(0)
        return [DecodingResult(audio_features=features, language="en", **script.next(prompt))]

    with (
        mock.patch.object(transcription_state, "decode_with_fallback", decode),
        mock.patch.object(transcription_state, "time_words", our_words(random.Random(seed))),
        mock.patch.object(AudioFile, "encode", lambda *_: None),
    ):
        while machine.step():
            pass
    return [segment.as_dict() for segment in transcript.segments]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    frames=st.sampled_from([150, 3000, 7013, 12_345]),
    clips=st.sampled_from([None, [(2.5, 31.0)], [(1.0, 9.99), (20.0, 60.0)]]),
    word_timestamps=st.booleans(),
    threshold=st.sampled_from([None, 0.1, 2.0]),
    condition=st.booleans(),
    prompt=st.sampled_from([None, "Names: Ada, Grace", "long " * 230]),
    carry=st.booleans(),
    temperature=st.sampled_from([0.0, 0.8]),
    logprob_threshold=st.sampled_from([None, -1.0]),
)
@example(
    seed=3,
    frames=7013,
    clips=None,
    word_timestamps=True,
    threshold=0.1,
    condition=True,
    prompt=None,
    carry=False,
    temperature=0.0,
    logprob_threshold=-1.0,
)
def test_segments_and_prompts_are_the_references(
    seed: int,
    frames: int,
    clips: list[tuple[float, float]] | None,
    word_timestamps: bool,
    threshold: float | None,
    condition: bool,
    prompt: str | None,
    carry: bool,
    temperature: float,
    logprob_threshold: float | None,
) -> None:
    # beyond the end of its audio, the reference would never stop
    clips = [(a, min(b, frames / 100)) for a, b in clips or [(0, frames / 100)] if a < frames / 100]
    options: dict[str, Any] = {
        "word_timestamps": word_timestamps,
        "hallucination_silence_threshold": threshold,
        "condition_on_previous_text": condition,
        "initial_prompt": prompt,
        "carry_initial_prompt": carry,
        "logprob_threshold": logprob_threshold,
    }
    theirs, mine = (Script(seed, temperature=temperature) for _ in range(2))
    points = [point for clip in clips for point in clip]
    expected = run_reference(theirs, frames, seed, clip_timestamps=points or [0.0, 0.0], **options)
    got = run_ours(mine, frames, seed, clips=clips, **options)
    assert mine.prompts == theirs.prompts
    assert got == expected["segments"]
