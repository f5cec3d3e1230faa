"""Beam search: against the reference's on random logits, and after given tokens on real weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
import whisper.decoding as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from whisper_stream.model.decoding.beam import BeamSearch, BeamSearchDecoder, beam_search
from whisper_stream.model.decoding.greedy import (
    GreedyOutput,
    GreedyRules,
    decode_greedy,
    score_text,
)
from whisper_stream.model.decoding.inference import EncodedAudio
from whisper_stream.model.decoding.task import decode
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.whisper.cache import CrossCache
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.model.whisper.tokenizer import get_tokenizer

DATA = Path(__file__).parents[2] / "data"
JFK, QUILTER, CUTTER = "en-speech-jfk.wav", "en-read-1272-quilter.flac", "en-read-7902-cutter.flac"
ENGLISH = get_tokenizer(False)
START = ENGLISH.sot_sequence_including_notimestamps


@cache
@torch.inference_mode()
def encoded(model: Whisper, clip: str) -> EncodedAudio:
    mel = log_mel_spectrogram(load_audio(DATA / clip), padding=480_000)[:, :3000]
    return EncodedAudio.from_mel(model, mel[None])


def window(model: Whisper, clip: str) -> CrossCache:
    with torch.inference_mode():
        return encoded(model, clip).cross


@cache
def rules() -> GreedyRules:
    barred = torch.zeros(51_864)
    barred[[*ENGLISH.non_speech_tokens, *range(ENGLISH.eot + 1, 51_864)]] = -torch.inf
    return GreedyRules(
        suppressed=barred,
        blank=(*ENGLISH.encode(" "), ENGLISH.eot),
        eot=ENGLISH.eot,
        no_speech=ENGLISH.no_speech,
    )


@torch.inference_mode()
def searched(
    model: Whisper, clip: str, *, beams: int = 5, most: int = 224, prefix: tuple[int, ...] = ()
) -> list[int]:
    initial = (*START, *prefix)
    return beam_search(
        model,
        window(model, clip),
        initial,
        rules(),
        beam_size=beams,
        max_tokens=most,
        allow_empty=bool(prefix),
    )


@torch.inference_mode()
def greedily(model: Whisper, clip: str) -> GreedyOutput:
    return decode_greedy(model, window(model, clip), START, rules(), sot_index=0)


@pytest.mark.parametrize("clip", [JFK, QUILTER, CUTTER])
def test_the_text_is_that_of_decode(tiny_en: Whisper, clip: str) -> None:
    (expected,) = decode(tiny_en, encoded(tiny_en, clip), beam_size=5, without_timestamps=True)
    assert searched(tiny_en, clip) == expected.tokens


def test_one_beam_is_greedy(tiny_en: Whisper) -> None:
    assert searched(tiny_en, CUTTER, beams=1) == greedily(tiny_en, CUTTER).tokens


def test_it_goes_on_from_a_prefix(tiny_en: Whisper) -> None:
    prefix = tuple(searched(tiny_en, JFK)[:9])
    (expected,) = decode(
        tiny_en,
        encoded(tiny_en, JFK),
        beam_size=5,
        without_timestamps=True,
        prefix=list(prefix),
        sample_len=200,
    )
    assert searched(tiny_en, JFK, prefix=prefix) == expected.tokens  # without the prefix


def test_after_the_whole_text_there_is_nothing_more(tiny_en: Whisper) -> None:
    whole = tuple(searched(tiny_en, CUTTER))
    assert searched(tiny_en, CUTTER, prefix=whole) == []


@pytest.mark.parametrize("most", [0, 1, 4])
def test_no_more_tokens_than_allowed(tiny_en: Whisper, most: int) -> None:
    assert len(searched(tiny_en, CUTTER, most=most)) == most


@pytest.mark.parametrize("clip", [JFK, CUTTER])
@torch.inference_mode()
def test_what_is_thought_of_a_text_is_what_was_thought_in_writing_it(
    tiny_en: Whisper, clip: str
) -> None:
    output = greedily(tiny_en, clip)
    judged = score_text(tiny_en, window(tiny_en, clip), START, output.tokens, rules(), sot_index=0)
    assert judged.tokens == output.tokens
    assert judged.logprobs == pytest.approx(output.logprobs, abs=1e-4)
    assert judged.no_speech_prob == pytest.approx(output.no_speech_prob, abs=1e-6)
    assert judged.scores is not None and output.scores is not None
    assert judged.scores.shape == output.scores.shape
    torch.testing.assert_close(judged.scores, output.scores, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_after_a_prompt_the_rows_begin_at_the_start_of_the_transcript(tiny_en: Whisper) -> None:
    prompt = (ENGLISH.sot_prev, *ENGLISH.encode(" A ship's log."))
    initial = (*prompt, *START)
    output = decode_greedy(
        tiny_en, window(tiny_en, CUTTER), initial, rules(), sot_index=len(prompt)
    )
    judged = score_text(
        tiny_en,
        window(tiny_en, CUTTER),
        initial,
        output.tokens,
        rules(),
        sot_index=len(prompt),
        cache=tiny_en.decoder.new_cache(1),
    )
    assert judged.scores is not None and output.scores is not None
    assert judged.scores.shape[1] == len(START) + len(output.tokens)
    assert judged.logprobs == pytest.approx(output.logprobs, abs=1e-4)
    torch.testing.assert_close(judged.scores, output.scores, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_an_empty_text_is_judged_by_its_end(tiny_en: Whisper) -> None:
    whole = searched(tiny_en, CUTTER)
    judged = score_text(
        tiny_en,
        window(tiny_en, CUTTER),
        (*START, *whole),
        [],
        rules(),
        sot_index=0,
        allow_empty=True,
    )
    assert judged.tokens == []
    assert len(judged.logprobs) == 1
    assert judged.logprobs[0] > -1.0  # nothing else is as likely to follow


# On random logits with many ties

VOCABULARY, EOT, SAMPLE_BEGIN = 12, 11, 2


class RecordedReorders:
    """Stands in for an inference on the reference's side."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def rearrange_kv_cache(self, source_indices: Sequence[int]) -> None:
        self.calls.append(list(source_indices))

    def reorder(self, source_rows: Sequence[int]) -> None:
        self.calls.append(list(source_rows))


def steps_of_logits(seed: int, steps: int, rows: int, *, ties: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(rows, VOCABULARY, generator=generator) * 2 for _ in range(steps)]
    return [step.round() for step in logits] if ties else logits


def trimmed(sequences: Sequence[Tensor]) -> list[tuple[int, ...]]:
    sampled = [sequence[SAMPLE_BEGIN:].tolist() for sequence in sequences]
    return [tuple(tokens[: tokens.index(EOT)]) for tokens in sampled]


# the reference hands a tensor to numpy.argsort
@pytest.mark.filterwarnings("ignore:__array_wrap__")
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    steps=st.integers(1, 9),
    windows=st.integers(1, 3),
    beam_size=st.integers(1, 5),
    patience=st.sampled_from([None, 0.5, 1.0, 2.0]),
    ties=st.booleans(),
)
def test_beam_search_finds_what_the_reference_finds(
    seed: int, steps: int, windows: int, beam_size: int, patience: float | None, ties: bool
) -> None:
    if round(beam_size * (patience or 1)) == 0:
        patience = 1.0
    rows = windows * beam_size
    mine, theirs = RecordedReorders(), RecordedReorders()
    ours = BeamSearchDecoder(
        beam_size=beam_size,
        eot=EOT,
        sample_begin=SAMPLE_BEGIN,
        reorder=mine.reorder,
        patience=patience,
    )
    other = reference.BeamSearchDecoder(beam_size, EOT, theirs, patience)
    tokens = torch.zeros(rows, SAMPLE_BEGIN, dtype=torch.int64)
    their_tokens, sums = tokens.clone(), torch.zeros(rows)
    for logits in steps_of_logits(seed, steps, rows, ties=ties):
        tokens, done = ours.update(tokens, logits)
        their_tokens, their_done = other.update(their_tokens, logits, sums)
        assert torch.equal(tokens, their_tokens)
        assert done == their_done
        if done:
            break
    assert mine.calls == theirs.calls

    got = ours.finalize(tokens)
    sequences, totals = other.finalize(
        their_tokens.reshape(windows, beam_size, -1), sums.reshape(windows, beam_size)
    )
    assert [[one.tokens for one in group] for group in got] == [trimmed(s) for s in sequences]
    assert [[one.sum_logprob for one in group] for group in got] == totals


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 12))
def test_one_ranking_at_the_start_is_enough(seed: int, beams: int, most: int) -> None:
    """Or the same one for every beam: as rows of tensors have it."""
    generator = torch.Generator().manual_seed(seed)
    table = (torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 2).log_softmax(dim=-1)
    decoder = BeamSearchDecoder(
        beam_size=beams, eot=EOT, sample_begin=1, reorder=lambda sources: None
    )
    tokens = torch.zeros((beams, 1), dtype=torch.long)
    for _ in range(most):
        tokens, done = decoder.update(tokens, table[tokens[:, -1]])
        if done:
            break
    (expected,) = decoder.finalize(tokens)

    search = BeamSearch([0], beams=beams, eot=EOT, max_tokens=most)
    rankings = [table[0]]
    while not search.done:
        best = [one.topk(beams + 1) for one in rankings]
        origins = search.take(
            [list(zip(b.indices.tolist(), b.values.numpy(), strict=True)) for b in best]
        )
        assert len(origins) == len(search.last)
        rankings = [table[token] for token in search.last]
    assert [one.tokens for one in search.candidates()] == [one.tokens for one in expected]
    assert search.best() in [list(one.tokens) for one in expected]
