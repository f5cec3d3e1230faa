"""Compute types: what is chosen, what is refused, and that packed fp16 weights say the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from whisper_stream.model.compute import PackedLinear, pack_linears, resolve_compute_type
from whisper_stream.model.errors import ModelError
from whisper_stream.model.loading import load_model
from whisper_stream.model.whisper import Whisper
from whisper_stream.streamer.backend import BackendConfig, WhisperBackend
from whisper_stream.streamer.jobs import DecodeJob

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("requested", "device", "packs", "expected"),
    [
        ("auto", CPU, True, "float16"),
        ("auto", CPU, False, "float32"),
        ("float32", CPU, True, "float32"),
        ("float16", CPU, True, "float16"),
        ("auto", CUDA, False, "float16"),
        ("bfloat16", CUDA, False, "bfloat16"),
        ("float32", CUDA, False, "float32"),
    ],
)
def test_what_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    requested: str,
    device: torch.device,
    packs: bool,
    expected: str,
) -> None:
    monkeypatch.setattr("whisper_stream.model.compute._can_pack", lambda: packs)
    assert resolve_compute_type(requested, device) == expected


@pytest.mark.parametrize(
    ("requested", "packs", "words"),
    [
        ("int3", True, "unknown compute_type 'int3'"),
        ("bfloat16", True, "choose float16 or float32"),
        ("float16", False, "choose float32"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, requested: str, packs: bool, words: str
) -> None:
    monkeypatch.setattr("whisper_stream.model.compute._can_pack", lambda: packs)
    with pytest.raises(ModelError, match=words):
        resolve_compute_type(requested, CPU)


@torch.inference_mode()
def test_a_packed_linear_is_exact_for_weights_that_are_fp16() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(48, 32, bias=False))
    module = nn.Sequential(nn.Linear(64, 48), inner)
    for parameter in module.parameters():
        parameter.copy_(parameter.half().float())
    x = torch.randn(5, 64)
    expected = module(x)
    pack_linears(module)
    assert [type(part) for part in (module[0], inner[0])] == [PackedLinear, PackedLinear]
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-5)


def test_float16_says_what_float32_says(tiny_en: Whisper, jfk: NDArray[np.float32]) -> None:
    packed = load_model("tiny.en", device="cpu", compute_type="float16")
    config = BackendConfig(final_context="trimmed")
    texts = []
    for model in (tiny_en, packed):
        (result,) = WhisperBackend(model, config).decode([DecodeJob(audio=jfk, language="en")])
        texts.append("".join(word.text for word in result.words))
    assert texts[0] == texts[1]
    assert texts[0].startswith(" And so my fellow Americans")
