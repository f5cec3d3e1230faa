"""Rows in slots: the network over them, the packed encoder; against what decodes one row alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from whisper_stream.model.gpu.decoder import Feed, SlotDecoder
from whisper_stream.model.gpu.encoder import PackedEncoder, _round
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.network import Whisper


def test_packed_windows_are_encoded_as_each_alone(
    tiny_en: Whisper, jfk: NDArray[np.float32]
) -> None:
    windows = [jfk[:48_000], jfk[16_000:100_000], jfk[:10_000]]
    lengths = [64_000, 112_000, 32_000]
    with torch.inference_mode():
        packed = PackedEncoder(tiny_en)(windows, lengths)
        at = 0
        for window, length in zip(windows, lengths, strict=True):
            samples = np.pad(window, (0, length - len(window)))
            alone = tiny_en.embed_audio(log_mel_spectrogram(samples)[None])[0]
            torch.testing.assert_close(packed[at : at + len(alone)], alone, rtol=1e-4, atol=1e-4)
            at += len(alone)
    assert at == len(packed)


def test_rows_and_frames_that_only_fill_a_batch_change_nothing(
    tiny_en: Whisper, jfk: NDArray[np.float32]
) -> None:
    """As on a GPU, where batches have few shapes."""
    windows, lengths = [jfk[:48_000], jfk[16_000:100_000]], [64_000, 112_000]
    positions = [length // 320 for length in lengths]
    with torch.inference_mode():
        encoder = PackedEncoder(tiny_en)
        samples = np.zeros((8, 128_000), np.float32)
        for row, window in enumerate(windows):
            samples[row, : len(window)] = window
        padded = encoder.encode(log_mel_spectrogram(samples), positions)
        torch.testing.assert_close(padded, encoder(windows, lengths), rtol=1e-4, atol=1e-4)
        one = encoder.encode(log_mel_spectrogram(samples), positions[:1])
        torch.testing.assert_close(one, encoder(windows[:1], lengths[:1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "samples", "padded"),
    [
        (1, 320, (8, 32_000)),
        (8, 32_000, (8, 32_000)),
        (9, 32_320, (16, 64_000)),
        (64, 479_680, (64, 480_000)),
        (65, 480_000, (72, 480_000)),
    ],
)
def test_batches_on_a_gpu_have_few_shapes(rows: int, samples: int, padded: tuple[int, int]) -> None:
    assert _round(rows, samples) == padded


def test_an_encoder_run_may_be_taken_in_steps(tiny_en: Whisper, jfk: NDArray[np.float32]) -> None:
    with torch.inference_mode():
        encoder = PackedEncoder(tiny_en)
        whole = encoder([jfk[:32_000]], [48_000])
        run = encoder.start([jfk[:32_000]], [48_000])
        assert not run.done
        run.advance(2)
        assert not run.done
        torch.testing.assert_close(run.finish(), whole, rtol=0, atol=0)
        assert run.done


def _slots(model: Whisper, *, silence: Sequence[tuple[Tensor, Tensor]] = ()) -> SlotDecoder:
    return SlotDecoder(
        model,
        audio_slots=3,
        text_slots=5,
        barred=torch.zeros(2, model.dims.n_vocab),
        no_speech=50_361,
        silence=silence,
        beams=2,
    )


def test_rows_of_unlike_places_are_run_as_each_alone(
    tiny_en: Whisper, jfk: NDArray[np.float32]
) -> None:
    """Text and audio in other slots, at other places, of other lengths, beside each other."""
    texts = [[50257, 50362, 843, 523], [50257, 50362], [50257, 50362, 616, 5891, 3399, 11]]
    with torch.inference_mode():
        features = [
            tiny_en.embed_audio(log_mel_spectrogram(jfk[: seconds * 16_000])[None])[0]
            for seconds in (3, 2, 4)
        ]
        decoder = _slots(tiny_en)
        windows = [(2, 150, False), (0, 100, False), (1, 200, False)]
        decoder.caches.enter(torch.cat(features), windows)
        feeds = [
            Feed(text_slot=text, audio_slot=window, tokens=tokens, start=0)
            for text, (window, _, _), tokens in zip((4, 0, 2), windows, texts, strict=True)
        ]
        got = decoder.prefill(feeds)
        added, _ = decoder.step(
            [
                Feed(text_slot=text, audio_slot=window, tokens=[13], start=len(tokens))
                for text, (window, _, _), tokens in zip((4, 0, 2), windows, texts, strict=True)
            ]
        )
        for own, tokens, choices, more in zip(features, texts, got, added, strict=True):
            logits = tiny_en.logits(torch.tensor([[*tokens, 13]]), own[None])[0]
            expected = logits.argmax(dim=-1).tolist()
            assert [*choices.tokens, *more.tokens] == expected
            best = logits.log_softmax(dim=-1).max(dim=-1).values.tolist()
            np.testing.assert_allclose([*choices.logprobs, *more.logprobs], best, atol=1e-3)


def test_a_copied_text_goes_on_by_itself(tiny_en: Whisper, jfk: NDArray[np.float32]) -> None:
    with torch.inference_mode():
        features = tiny_en.embed_audio(log_mel_spectrogram(jfk[:32_000])[None])
        decoder = _slots(tiny_en)
        decoder.caches.enter(features[0], [(0, 100, False)])
        initial = [50257, 50362]
        (first,) = decoder.prefill_beams([Feed(text_slot=0, audio_slot=0, tokens=initial, start=0)])
        assert len(first.tokens) == 3  # one more than beams
        decoder.caches.copy_text([0, 0], [3, 1], 2)
        _, ranked = decoder.step(
            [],
            [
                Feed(text_slot=text, audio_slot=0, tokens=[token], start=2)
                for text, token in zip((0, 3), first.tokens, strict=False)
            ],
        )
        for token, ranking in zip(first.tokens, ranked, strict=False):
            logits = tiny_en.logits(torch.tensor([[*initial, token]]), features)[0, -1]
            assert ranking.tokens == logits.topk(3).indices.tolist()


def test_what_is_expected_is_chosen_with_its_probability(
    tiny_en: Whisper, jfk: NDArray[np.float32]
) -> None:
    with torch.inference_mode():
        features = tiny_en.embed_audio(log_mel_spectrogram(jfk[:32_000])[None])
        decoder = _slots(tiny_en)
        decoder.caches.enter(features[0], [(0, 100, False)])
        tokens = [50257, 50362, 843]
        (choices,) = decoder.prefill(
            [
                Feed(
                    text_slot=0,
                    audio_slot=0,
                    tokens=tokens,
                    start=0,
                    first_choice=1,
                    sot_index=0,
                    expected=[843, 50256],
                )
            ]
        )
        logits = tiny_en.logits(torch.tensor([tokens]), features)[0]
    assert choices.tokens == [843, 50256]
    expected = logits.log_softmax(dim=-1)
    np.testing.assert_allclose(
        choices.logprobs, [float(expected[1, 843]), float(expected[2, 50256])], atol=1e-3
    )
    assert choices.no_speech_prob is not None
    assert abs(choices.no_speech_prob - float(expected[0, 50_361].exp())) < 1e-5
