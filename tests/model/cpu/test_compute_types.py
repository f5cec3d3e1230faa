"""Compute types: what is chosen, what is refused, and that the lighter ones say what float32 says."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from whisper_stream.model.cpu.compute_types import resolve_compute_type
from whisper_stream.model.cpu.linears import Bfloat16Linear, Int8Linear, PackedLinear
from whisper_stream.model.errors import ModelError
from whisper_stream.model.weights.loading import load_model
from whisper_stream.model.whisper.network import TextDecoder, Whisper
from whisper_stream.streamer.engine.cpu_backend import BackendConfig, CpuBackend
from whisper_stream.streamer.jobs import DecodeJob

pytestmark = pytest.mark.timeout(120)  # on a fresh machine the first test compiles the kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("requested", "device", "packs", "matrix_units", "expected"),
    [
        ("auto", CPU, True, True, "bfloat16"),
        ("auto", CPU, True, False, "int8"),
        ("auto", CPU, False, False, "float32"),
        ("float32", CPU, True, True, "float32"),
        ("float16", CPU, True, False, "float16"),
        ("int8", CPU, True, True, "int8"),
        ("bfloat16", CPU, True, True, "bfloat16"),
        ("auto", CUDA, False, False, "float16"),
        ("bfloat16", CUDA, False, False, "bfloat16"),
        ("float32", CUDA, False, False, "float32"),
    ],
)
def test_what_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    requested: str,
    device: torch.device,
    packs: bool,
    matrix_units: bool,
    expected: str,
) -> None:
    monkeypatch.setattr("whisper_stream.model.cpu.compute_types._can_pack", lambda: packs)
    monkeypatch.setattr(
        "whisper_stream.model.cpu.compute_types._has_matrix_units", lambda: matrix_units
    )
    assert resolve_compute_type(requested, device) == expected


@pytest.mark.parametrize(
    ("requested", "device", "packs", "words"),
    [
        ("int3", CPU, True, "unknown compute_type 'int3'"),
        ("bfloat16", CPU, True, "choose int8 or float32"),
        ("float16", CPU, False, "choose float32"),
        ("int8", CPU, False, "choose float32"),
        ("int8", CUDA, True, "choose float16 or bfloat16"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, requested: str, device: torch.device, packs: bool, words: str
) -> None:
    monkeypatch.setattr("whisper_stream.model.cpu.compute_types._can_pack", lambda: packs)
    monkeypatch.setattr("whisper_stream.model.cpu.compute_types._has_matrix_units", lambda: False)
    with pytest.raises(ModelError, match=words):
        resolve_compute_type(requested, device)


@torch.inference_mode()
def test_a_packed_linear_is_exact_for_weights_that_are_fp16() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48)
    for parameter in linear.parameters():
        parameter.copy_(parameter.half().float())
    x = torch.randn(5, 64)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("form", "off"), [(Int8Linear, 0.02), (Bfloat16Linear, 0.01)])
@torch.inference_mode()
def test_a_lighter_linear_is_near(form: type[nn.Module], off: float) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(384, 96)
    x = torch.randn(2, 40, 384)
    expected = linear(x)
    error = form(linear)(x).float() - expected
    assert error.norm() / expected.norm() < off


@torch.inference_mode()
def test_an_int8_row_does_not_depend_on_the_rows_beside_it() -> None:
    torch.manual_seed(0)
    form = Int8Linear(nn.Linear(384, 96))
    x = torch.randn(4, 384)
    x[0] *= 1000
    torch.testing.assert_close(form(x)[2:], form(x[2:]), rtol=0, atol=1e-6)


def test_exact_types_keep_their_decoder(tiny_en: Whisper) -> None:
    assert isinstance(tiny_en.decoder, TextDecoder)
    packed = [type(part) for part in tiny_en.decoder.modules() if "Linear" in type(part).__name__]
    assert set(packed) == {PackedLinear}  # exact: tiny.en is published in fp16


def _available() -> list[str]:
    kinds = ["float16", "int8"]
    return [*kinds, "bfloat16"] if torch.cpu._is_amx_tile_supported() else kinds


@pytest.mark.parametrize("kind", _available())
def test_it_says_what_float32_says(tiny_en: Whisper, jfk: NDArray[np.float32], kind: str) -> None:
    light = load_model("tiny.en", device="cpu", compute_type=kind)
    config = BackendConfig(endpoint_context="trimmed")
    texts = []
    for model in (tiny_en, light):
        (result,) = CpuBackend(model, config).decode([DecodeJob(audio=jfk, language="en")])
        text = "".join(word.text for word in result.words).lower()
        texts.append(re.findall(r"[a-z]+", text))  # a full stop may become a comma
    assert texts[0][:5] == ["and", "so", "my", "fellow", "americans"]
    assert SequenceMatcher(a=texts[0], b=texts[1]).ratio() > 0.95
