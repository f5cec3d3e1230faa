"""The compiled decoder against the plain one in fp32, given the same weights and real audio."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from whisper_stream.model.cpu.decoder import CompiledDecoder
from whisper_stream.model.errors import ModelError
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import build_model, load_model
from whisper_stream.model.whisper.cache import CrossCache
from whisper_stream.model.whisper.layers import DecoderBlock
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.network import TextDecoder, Whisper

from ...helpers.reference import checkpoint_of
from ...helpers.weight_files import SMALL, pt_file, small_state

pytestmark = pytest.mark.timeout(120)  # on a fresh machine the first test compiles the kernels

DATA = Path(__file__).parents[2] / "data"
TOKENS = torch.tensor([[50257, 50362, 843, 523, 616, 5891, 3399, 11, 1265, 407, 644, 534]])
LENGTH = TOKENS.shape[1]
STEPS = [1] * LENGTH
HEADS = {1: [0, 5], 3: [4]}  # by layer
# logits run to 26; activations are rounded to 14 bits or so
NEAR = 0.03


@cache
def plain_model() -> Whisper:
    """tiny.en, no layer packed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whisper_stream.model.cpu.compute_types._can_pack", lambda: False)
        return build_model(
            checkpoint_of("tiny.en"),
            name="tiny.en",
            device=torch.device("cpu"),
            compute_type="float32",
        )


def on_int8_levels(weight: Tensor) -> Tensor:
    unit = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / unit).round() * unit


@cache
@torch.inference_mode()
def decoders() -> tuple[TextDecoder, CompiledDecoder]:
    """The plain decoder, its weights rounded to what int8 holds, and the compiled one."""
    original = plain_model().decoder
    assert isinstance(original, TextDecoder)
    rounded = deepcopy(original)
    rounded.projection.weight.copy_(on_int8_levels(rounded.projection.weight))
    for block in rounded.blocks:
        assert isinstance(block, DecoderBlock)
        for layer in (block.attn_qkv, block.attn_out, block.cross_query):
            layer.weight.copy_(on_int8_levels(layer.weight))
        for layer in (block.cross_out, block.mlp_in, block.mlp_out):
            layer.weight.copy_(on_int8_levels(layer.weight))
    return rounded, CompiledDecoder(deepcopy(original))


@cache
@torch.inference_mode()
def features() -> Tensor:
    """The encoder's output for two windows of 4 seconds, [2, F, D]."""
    audio = load_audio(DATA / "en-speech-jfk.wav")
    windows = [log_mel_spectrogram(audio[at : at + 64_000]) for at in (0, 64_000)]
    return plain_model().embed_audio(torch.stack(windows))


@cache
@torch.inference_mode()
def _audio() -> CrossCache:
    return decoders()[1].audio_cache(features())


def audio_of(windows: list[int]) -> CrossCache:
    """The very same keys and values: computed anew, bf16 may round them to the other side."""
    whole = _audio()
    return CrossCache([k[windows] for k in whole.k], [v[windows] for v in whole.v])


def rows_of_tokens(rows: int) -> Tensor:
    tokens = TOKENS.repeat(rows, 1)
    tokens[:, 2:] += torch.arange(rows)[:, None]
    return tokens


def run(
    decoder: TextDecoder | CompiledDecoder, tokens: Tensor, audio: CrossCache, widths: list[int]
) -> Tensor:
    """``tokens`` [B, T], so many at a time -> logits [B, T, V]"""
    return run_with_scores(decoder, tokens, audio, widths, None)[0]


def run_with_scores(
    decoder: TextDecoder | CompiledDecoder,
    tokens: Tensor,
    audio: CrossCache,
    widths: list[int],
    heads: dict[int, list[int]] | None = HEADS,
) -> tuple[Tensor, Tensor]:
    """The same, with the scores of ``heads`` [B, h, T, S]"""
    own, at = decoder.new_cache(len(tokens)), 0
    logits, scores = [], [torch.empty(0)]
    for width in widths:
        positions = torch.arange(at, at + width).expand(len(tokens), width)
        hidden, seen = decoder(
            tokens[:, at : at + width], positions, own, audio, start=at, heads=heads
        )
        assert (seen is None) == (heads is None)
        logits.append(decoder.logits(hidden))
        scores.append(seen if seen is not None else torch.empty(0))
        at += width
    return torch.cat(logits, dim=1), torch.cat(scores[1:], dim=2 if heads else 0)


def off(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("widths", [STEPS, [12], [4, 1, 1, 3, 3], [2, 10]])
@torch.inference_mode()
def test_logits_and_scores_are_those_of_the_same_weights(widths: list[int]) -> None:
    """Few tokens at once take the fused layers, many the wide way."""
    plain, compiled = decoders()
    audio = audio_of([0])
    expected, expected_scores = run_with_scores(plain, TOKENS, audio, [LENGTH])
    logits, scores = run_with_scores(compiled, TOKENS, audio, widths)
    assert off(logits, expected) < NEAR
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert scores.shape == expected_scores.shape == (1, 3, LENGTH, audio.k[0].shape[2])
    assert off(scores, expected_scores) < NEAR


@torch.inference_mode()
def test_int8_weights_are_near_the_published_ones() -> None:
    original = plain_model().decoder
    assert isinstance(original, TextDecoder)
    expected = run(original, TOKENS, audio_of([0]), [LENGTH])
    logits = run(decoders()[1], TOKENS, audio_of([0]), STEPS)
    assert ((logits - expected).norm() / expected.norm()).item() < 0.06
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@torch.inference_mode()
def test_steps_do_not_depend_on_other_rows_nor_on_how_many_tokens_they_take() -> None:
    """Four rows of two windows, token by token, are exactly each alone, one, two or four at a time."""
    compiled, tokens, windows = decoders()[1], rows_of_tokens(4), [0, 1, 1, 0]
    together, scores = run_with_scores(compiled, tokens, audio_of(windows), STEPS)
    for row, window in enumerate(windows):
        for widths in (STEPS, [2] * 6, [4] * 3):
            alone, own = run_with_scores(
                compiled, tokens[row : row + 1], audio_of([window]), widths
            )
            assert torch.equal(alone[0], together[row])
            assert torch.equal(own[0], scores[row])


@torch.inference_mode()
def test_many_tokens_at_once_do_not_depend_on_other_rows() -> None:
    compiled, tokens, windows = decoders()[1], rows_of_tokens(4), [0, 1, 1, 0]
    together = run(compiled, tokens, audio_of(windows), [LENGTH])
    for row, window in enumerate(windows):
        audio = audio_of([window])
        assert off(run(compiled, tokens[row : row + 1], audio, [LENGTH])[0], together[row]) < NEAR
        assert off(run(compiled, tokens[row : row + 1], audio, STEPS)[0], together[row]) < NEAR


@pytest.mark.parametrize("widths", [STEPS, [12]])
@torch.inference_mode()
def test_candidates_share_the_audio_of_their_window(widths: list[int]) -> None:
    plain, compiled = decoders()
    tokens, audio = rows_of_tokens(4), audio_of([0, 1])
    expected = run(plain, tokens, audio_of([0, 0, 1, 1]), widths)
    assert off(run(compiled, tokens, audio, widths), expected) < NEAR


@torch.inference_mode()
def test_a_rejected_draft_leaves_no_trace() -> None:
    compiled, audio = decoders()[1], audio_of([0])
    own = compiled.new_cache(1)
    compiled(TOKENS[:, :4], torch.arange(4)[None], own, audio, start=0)
    compiled(torch.full((1, 8), 1234), torch.arange(4, 12)[None], own, audio, start=4)
    right, _ = compiled(TOKENS[:, 4:8], torch.arange(4, 8)[None], own, audio, start=4)
    expected = run(compiled, TOKENS[:, :8], audio, [4, 4])
    assert torch.equal(compiled.logits(right), expected[:, 4:])


@torch.inference_mode()
def test_embeddings_are_read_from_the_int8_table() -> None:
    plain, compiled = decoders()
    got = compiled.wide.token_embedding(TOKENS)
    np.testing.assert_allclose(got, plain.token_embedding(TOKENS), rtol=1e-6, atol=1e-7)


def test_steps_use_one_thread_for_small_operations() -> None:
    threads = torch.get_num_threads()
    with decoders()[1].stepping():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_a_model_of_other_heads_is_told_what_to_choose(tmp_path: Path) -> None:
    file = pt_file(tmp_path / "small.pt", small_state())
    assert SMALL.n_text_state // SMALL.n_text_head != 64
    with pytest.raises(ModelError, match="choose compute_type float32"):
        load_model(file, device="cpu", compute_type="int8")
