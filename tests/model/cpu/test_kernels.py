"""The decoder's kernels, each against numpy's integers or PyTorch in fp32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from whisper_stream.model.cpu.int8 import Floats, Int8Embedding, Int8Matrix, KernelLinear
from whisper_stream.model.cpu.kernels import (
    HEAD_SIZE,
    attend_audio,
    attend_text,
    bf16_,
    erf_,
    exp_,
    gelu,
    linear_part,
    normalise,
)

pytestmark = pytest.mark.timeout(120)  # on a fresh machine the first test compiles the kernels


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def levels(size: int) -> int:
    """The most that an input may be rounded to so that ``size`` products with int8 fit in an int32."""
    return min(32_767, (2**31 - 1) // (128 * size))


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize(("outputs", "size"), [(8, 64), (37, 384), (1003, 1536)])
def test_products_of_whole_numbers_are_exact(rows: int, outputs: int, size: int) -> None:
    rng = np.random.default_rng(rows * outputs)
    most = levels(size)
    x = rng.integers(-most, most + 1, (rows, size))
    x[:, 0] = most  # so that the unit of every row is 1
    weight = rng.integers(-127, 128, (outputs, size)).astype(np.int8)
    scale = np.ldexp(np.float32(1), rng.integers(-8, 3, outputs)).astype(np.float32)
    out = np.full((rows, outputs), np.nan, np.float32)
    linear_part(
        x.astype(np.float32), (weight, scale, np.zeros(outputs, np.float32)), out, 0, outputs
    )
    exact = x @ weight.T.astype(np.int64)
    assert np.array_equal(out, exact.astype(np.float32) * scale)


@pytest.mark.parametrize("size", [384, 5120])
def test_the_largest_sums_do_not_overflow(size: int) -> None:
    x = np.full((5, size), 3.0, np.float32)
    x[1] *= -1
    weight = np.full((6, size), 127, np.int8)
    weight[1] = -127
    out = np.empty((5, 6), np.float32)
    linear_part(x, (weight, np.ones(6, np.float32), np.ones(6, np.float32)), out, 0, 6)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + 1
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_a_linear_layer_is_as_near_as_rounding_lets_it(rows: int) -> None:
    x, bias = normal(1, rows, 384), normal(2, 50)
    x[0] *= 1000  # a row's rounding is its own
    matrix = Int8Matrix.of(linear_of(normal(3, 50, 384), bias))
    weight = matrix.weight.astype(np.float64) * matrix.scale[:, None]
    out = np.empty((rows, 50), np.float32)
    linear_part(x, matrix.arrays, out, 0, 50)
    unit = np.abs(x).max(axis=1) / levels(384)  # [R]
    bound = 0.5 * unit[:, None] * np.abs(weight).sum(axis=1) + 1e-5 * np.abs(out) + 1e-5
    assert (np.abs(out - (x.astype(np.float64) @ weight.T + bias)) <= bound).all()


def linear_of(weight: Floats, bias: Floats | None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = torch.from_numpy(weight)
    if bias is not None:
        layer.bias.data = torch.from_numpy(bias)
    return layer.requires_grad_(False)


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (5, 12), (7, 23), (16, 23)])
def test_a_part_writes_its_columns_only(begin: int, end: int) -> None:
    x, weight = normal(4, 5, 64), np.random.default_rng(5).integers(-127, 128, (23, 64))
    matrix = (weight.astype(np.int8), np.abs(normal(6, 23)), normal(7, 23))
    whole = np.empty((5, 23), np.float32)
    linear_part(x, matrix, whole, 0, 23)
    out = np.full((5, 23), 7.0, np.float32)
    linear_part(x, matrix, out, begin, end)
    assert np.array_equal(out[:, begin:end], whole[:, begin:end])
    assert (out[:, :begin] == 7).all() and (out[:, end:] == 7).all()


def test_rows_do_not_depend_on_each_other() -> None:
    x = normal(8, 9, 128)
    x[4] *= 1e4
    matrix = Int8Matrix.of(linear_of(normal(9, 30, 128), None))
    together = np.empty((9, 30), np.float32)
    linear_part(x, matrix.arrays, together, 0, 30)
    for row in range(9):
        alone = np.empty((1, 30), np.float32)
        linear_part(x[row : row + 1], matrix.arrays, alone, 0, 30)
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-6, atol=1e-6)


def test_zeros_are_no_trouble() -> None:
    out = np.empty((2, 8), np.float32)
    bias = normal(10, 8)
    matrix = Int8Matrix.of(linear_of(np.zeros((8, 64), np.float32), bias))
    linear_part(np.zeros((2, 64), np.float32), matrix.arrays, out, 0, 8)
    assert np.array_equal(out, np.stack([bias, bias]))


def test_a_matrix_is_rounded_to_127_levels_of_its_rows() -> None:
    weight = normal(11, 20, 64)
    matrix = Int8Matrix.of(linear_of(weight, None))
    assert (np.abs(matrix.weight).max(axis=1) == 127).all()
    error = np.abs(matrix.weight * matrix.scale[:, None] - weight)
    assert (error <= 0.501 * np.abs(weight).max(axis=1, keepdims=True) / 127).all()
    assert not matrix.bias.any()


@pytest.mark.parametrize("outputs", [40, 40_001])
def test_a_large_layer_is_shared_and_gives_the_same(outputs: int) -> None:
    """40,001 outputs of 128 inputs are more than a thread does alone."""
    matrix = Int8Matrix.of(linear_of(normal(12, outputs, 128), normal(13, outputs)))
    x = torch.from_numpy(normal(14, 2, 3, 128))
    out = KernelLinear(matrix)(x)
    expected = np.empty((6, outputs), np.float32)
    linear_part(x.view(6, 128).numpy(), matrix.arrays, expected, 0, outputs)
    assert out.shape == (2, 3, outputs)
    np.testing.assert_allclose(out.view(6, -1).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_an_embedding_reads_rows_of_the_matrix() -> None:
    matrix = Int8Matrix.of(linear_of(normal(15, 30, 64), None))
    got = Int8Embedding(matrix)(torch.tensor([[3, 29], [0, 3]])).numpy()
    table = matrix.weight * matrix.scale[:, None]
    assert got.dtype == np.float32 and np.array_equal(got, table[[[3, 29], [0, 3]]])


@pytest.mark.parametrize("size", [64, 384, 1280])
def test_normalise_is_layer_norm(size: int) -> None:
    x, gain, bias = 5 * normal(16, 3, size) + 2, normal(17, size), normal(18, size)
    x[1] *= 100
    out = np.empty_like(x)
    normalise(x, (gain, bias), out)
    weight, shift = _tensors(gain, bias)
    expected = F.layer_norm(torch.from_numpy(x), (size,), weight, shift)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)


def _tensors(*arrays: NDArray[Any]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_gelu_is_the_exact_form() -> None:
    x = np.concatenate([np.linspace(-9, 9, 4001), [-80, 0, 80]]).astype(np.float32)[None]
    expected = F.gelu(torch.from_numpy(x.copy())).numpy()
    gelu(x)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)


@njit
def _each(x: Any, which: int, out: Any) -> None:
    for i in range(len(x)):
        out[i] = exp_(x[i]) if which == 0 else erf_(x[i])


def test_exp_is_near() -> None:
    x = np.concatenate([np.linspace(-87, 0, 50_001), np.linspace(-1, 0, 5001)]).astype(np.float32)
    out = np.empty_like(x)
    _each(x, 0, out)
    expected = np.array([math.exp(value) for value in x.tolist()])
    # the argument itself is rounded: by up to 4e-6 at -87
    assert (np.abs(out / expected - 1) <= 4e-7 + 1.2e-7 * np.abs(x)).all()


def test_exp_of_very_little_is_next_to_nothing() -> None:
    x = np.array([-88, -1e4, -np.inf], np.float32)
    out = np.empty_like(x)
    _each(x, 0, out)
    assert ((out >= 0) & (out < 2e-38)).all()


def test_erf_is_near() -> None:
    x = np.linspace(-6, 6, 20_001).astype(np.float32)
    out = np.empty_like(x)
    _each(x, 1, out)
    expected = np.array([math.erf(value) for value in x.tolist()])
    assert np.abs(out - expected).max() < 5e-7


@njit
def _widened(bits: Any, out: Any) -> None:
    for i in range(len(bits)):
        out[i] = bf16_(bits[i])


def test_bf16_is_read() -> None:
    given = torch.cat([torch.from_numpy(normal(19, 500)), torch.tensor([0.0, -0.0, 1e30, -1e-30])])
    given = given.bfloat16()
    out = np.empty(len(given), np.float32)
    _widened(given.view(torch.int16).numpy(), out)
    assert np.array_equal(out, given.float().numpy())


def test_text_attention_sees_each_row_up_to_its_position() -> None:
    """Two sequences of three tokens, at places of their own, after others that are in the cache."""
    heads, room = 3, 12
    state = heads * HEAD_SIZE
    qkv = normal(20, 6, 3 * state)
    positions = np.array([4, 5, 6, 0, 1, 2])
    keys, values = normal(21, 2, heads, room, HEAD_SIZE), normal(22, 2, heads, room, HEAD_SIZE)
    expected_keys, expected_values = keys.copy(), values.copy()
    q, k, v = (part.reshape(6, heads, HEAD_SIZE) for part in np.split(qkv, 3, axis=1))
    expected = np.empty((6, heads, HEAD_SIZE), np.float32)
    for row, at in enumerate(positions):
        expected_keys[row // 3, :, at], expected_values[row // 3, :, at] = k[row], v[row]
    keys_and_values = _tensors(expected_keys, expected_values)
    for row, at in enumerate(positions):
        own_k, own_v = keys_and_values[0][row // 3], keys_and_values[1][row // 3]
        query = torch.from_numpy(q[row][:, None])
        attended = F.scaled_dot_product_attention(query, own_k[:, : at + 1], own_v[:, : at + 1])
        expected[row] = attended[:, 0].numpy()
    out = np.empty((6, state), np.float32)
    attend_text(qkv, positions, (keys, values), out)
    assert np.array_equal(keys, expected_keys) and np.array_equal(values, expected_values)
    np.testing.assert_allclose(out, expected.reshape(6, state), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("windows", [1, 2, 4])
def test_audio_attention_sees_its_window(windows: int) -> None:
    """Four sequences of two tokens share ``windows`` windows; heads 2 and 0 leave their scores."""
    heads, size, length = 3, 90, 2
    state = heads * HEAD_SIZE
    queries = 3 * normal(23, 8, state)
    k, v = (
        torch.from_numpy(normal(seed, windows, heads, size, HEAD_SIZE)).bfloat16()
        for seed in (24, 25)
    )
    slots = np.array([1, -1, 0])
    seen = np.full((4, 2, length, size), -np.inf, np.float32)
    out = np.empty((8, state), np.float32)
    bits = [part.view(torch.int16).numpy() for part in (k, v)]
    attend_audio(queries, tuple(bits), slots, seen, out)

    q = torch.from_numpy(queries).view(4, length, heads, HEAD_SIZE).transpose(1, 2)  # [B, H, T, d]
    k, v = (part.float().repeat_interleave(4 // windows, dim=0) for part in (k, v))
    attended = F.scaled_dot_product_attention(q, k, v)
    expected = attended.transpose(1, 2).reshape(8, state)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)
    scores = (q @ k.transpose(2, 3) / 8)[:, [2, 0]]
    np.testing.assert_allclose(seen, scores.numpy(), rtol=1e-4, atol=1e-4)
