"""The network against the reference, with the same weights on real audio, and its caches against none."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.whisper.cache import CrossCache, SelfCache
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.network import Whisper

from ...helpers.reference import our_model, reference_model

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

DATA = Path(__file__).parents[2] / "data"
# any text will do: every position must agree
TOKENS = [[50257, 50362, 843, 523, 616, 5891, 3399, 11, 1265, 407, 644, 534]]


@cache
def mel_of(clip: str, seconds: float = 30.0) -> Tensor:
    audio = load_audio(DATA / clip)
    audio = np.pad(audio, (0, max(0, 480_000 - len(audio))))[: round(seconds * 16_000)]
    return log_mel_spectrogram(audio)[None]


@cache
def jfk_features(name: str) -> Tensor:
    with torch.inference_mode():
        return our_model(name).embed_audio(mel_of("en-speech-jfk.wav"))


@pytest.mark.parametrize("name", ["tiny.en", "base"])
@torch.inference_mode()
def test_encoder_and_decoder_equal_the_reference(name: str) -> None:
    mel = mel_of("en-speech-jfk.wav")
    features = jfk_features(name)
    reference = reference_model(name)
    expected = reference.encoder(mel)
    assert (features - expected).abs().max() < 1e-3
    tokens = torch.tensor(TOKENS)
    ours = our_model(name).logits(tokens, features)
    assert (ours - reference.decoder(tokens, expected)).abs().max() < 1e-3


@torch.inference_mode()
def test_forward_is_encoder_and_decoder() -> None:
    model, tokens = our_model("tiny.en"), torch.tensor(TOKENS)
    mel = mel_of("en-speech-jfk.wav", 4.0)
    expected = model.logits(tokens, model.embed_audio(mel))
    torch.testing.assert_close(model(mel, tokens), expected)


def repeat_rows(audio: CrossCache, times: int) -> CrossCache:
    """Give every candidate a copy of its window."""
    return CrossCache(
        [k.repeat_interleave(times, dim=0) for k in audio.k],
        [v.repeat_interleave(times, dim=0) for v in audio.v],
    )


@torch.inference_mode()
def test_a_mel_longer_than_thirty_seconds_is_refused() -> None:
    with pytest.raises(ValueError, match="3002 frames"):
        our_model("tiny.en").embed_audio(torch.zeros(1, 80, 3002))


@pytest.mark.parametrize("widths", [[1] * 12, [12], [4, 1, 1, 3, 3], [7, 5]])
@torch.inference_mode()
def test_cached_equals_uncached(widths: list[int]) -> None:
    """Tokens one by one, or several at once, at positions that are given."""
    model, tokens = our_model("tiny.en"), torch.tensor(TOKENS)
    features = jfk_features("tiny.en")
    audio, own = model.decoder.audio_cache(features), model.decoder.new_cache(1)
    hidden, at = [], 0
    for width in widths:
        positions = torch.arange(at, at + width)[None]
        part, _ = model.decoder(tokens[:, at : at + width], positions, own, audio, start=at)
        hidden.append(part)
        at += width
    logits = model.decoder.logits(torch.cat(hidden, dim=1))
    assert (logits - model.logits(tokens, features)).abs().max() < 1e-3


@torch.inference_mode()
def test_a_rejected_draft_leaves_no_trace() -> None:
    model, tokens = our_model("tiny.en"), torch.tensor(TOKENS)
    features = jfk_features("tiny.en")
    audio, own = model.decoder.audio_cache(features), model.decoder.new_cache(1)
    model.decoder(tokens[:, :4], torch.arange(4)[None], own, audio, start=0)
    wrong = torch.full((1, 8), 1234)
    model.decoder(wrong, torch.arange(4, 12)[None], own, audio, start=4)
    right, _ = model.decoder(tokens[:, 4:], torch.arange(4, 12)[None], own, audio, start=4)
    expected = model.logits(tokens, features)[:, 4:]
    assert (model.decoder.logits(right) - expected).abs().max() < 1e-3


@torch.inference_mode()
def test_candidates_share_the_audio_of_their_window() -> None:
    model = our_model("tiny.en")
    features = torch.cat([jfk_features("tiny.en")[:, :200], jfk_features("tiny.en")[:, 300:500]])
    audio = model.decoder.audio_cache(features)
    tokens = torch.tensor(TOKENS).repeat(4, 1)
    tokens[:, 2:] += torch.arange(4)[:, None]
    positions = torch.arange(12).expand(4, 12)
    shared, _ = model.decoder(tokens, positions, model.decoder.new_cache(4), audio, start=0)
    alone, _ = model.decoder(
        tokens, positions, model.decoder.new_cache(4), repeat_rows(audio, 2), start=0
    )
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_attention_scores_equal_the_reference() -> None:
    name = "tiny.en"
    model, reference = our_model(name), reference_model(name)
    features, tokens = jfk_features(name), torch.tensor(TOKENS)
    seen: list[Tensor] = []
    hooks = [
        block.cross_attn.register_forward_hook(lambda _, args, out: seen.append(out[1][0]))
        for block in reference.decoder.blocks
    ]
    from whisper.model import disable_sdpa

    with disable_sdpa():
        reference.decoder(tokens, features)
    for hook in hooks:
        hook.remove()
    positions = torch.arange(12)[None]
    _, scores = model.decoder(
        tokens,
        positions,
        model.decoder.new_cache(1),
        model.decoder.audio_cache(features),
        start=0,
        heads=model.heads_by_layer,
    )
    assert scores is not None
    expected = torch.stack([seen[layer][head] for layer, head in sorted(model.alignment_heads)])
    assert (scores[0] - expected).abs().max() < 1e-3


def test_reorder_and_repeat_move_whole_rows() -> None:
    dims = our_model("tiny.en").dims
    own = SelfCache(dims, 3, device=torch.device("cpu"), dtype=torch.float32)
    own.k[:] = torch.arange(3.0)[None, :, None, None, None]
    own.v[:] = -own.k
    own.reorder([2, 0, 0], length=5)
    assert own.k[0, :, 0, 4, 0].tolist() == [2.0, 0.0, 0.0]
    assert own.v[0, :, 0, 4, 0].tolist() == [-2.0, 0.0, 0.0]
    own.repeat(2)
    assert own.rows == 6
    assert own.k[0, :, 0, 0, 0].tolist() == [2.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    own.repeat(2, room=7)
    assert own.k.shape[1:4] == own.v.shape[1:4] == (12, dims.n_text_head, 7)
    assert own.v[0, :, 0, 4, 0].tolist() == [-2.0] * 4 + [0.0] * 8


def test_models_of_unknown_heads_use_the_upper_half() -> None:
    dims = our_model("tiny.en").dims
    model = Whisper(dims)
    half = dims.n_text_layer // 2
    assert sorted(model.heads_by_layer) == list(range(half, dims.n_text_layer))
    assert all(heads == list(range(dims.n_text_head)) for heads in model.heads_by_layer.values())


@torch.inference_mode()
def test_candidates_that_share_a_window_have_their_scores() -> None:
    """Several sequences over one window, two windows at once: as each sequence with its own copy."""
    model = our_model("tiny.en")
    features = torch.cat([jfk_features("tiny.en")[:, :200], jfk_features("tiny.en")[:, 200:400]])
    audio = model.decoder.audio_cache(features)
    tokens = torch.tensor([[50257, 50362, 843 + row] for row in range(6)])
    positions = torch.arange(3).expand(6, 3)
    heads = model.heads_by_layer
    shared, scores = model.decoder(
        tokens, positions, model.decoder.new_cache(6), audio, start=0, heads=heads
    )
    alone, expected = model.decoder(
        tokens, positions, model.decoder.new_cache(6), repeat_rows(audio, 3), start=0, heads=heads
    )
    assert scores is not None and expected is not None
    assert scores.shape == (6, len(model.alignment_heads), 3, 200)
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-3)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-3)
