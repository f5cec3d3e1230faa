"""The GPU kernels, as far as a machine without a GPU can tell: the interpreter, the compiler, the fallback."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from whisper_stream.model import align
from whisper_stream.model.align import median_filter, token_times
from whisper_stream.model.gpu import triton_fallback
from whisper_stream.model.gpu.triton_fallback import try_kernel

# Values from few levels give many ties, which must fall the same way as on the CPU.
INTERPRETED = """
import numpy as np, torch
from whisper_stream.model.align import median_filter, token_times
from whisper_stream.model.gpu.triton_dtw import row_starts
from whisper_stream.model.gpu.triton_median import median_rows

torch.set_num_threads(1)
dice = torch.Generator().manual_seed(1)
x = torch.randint(0, 5, (2, 270), generator=dice).float()
x[1, 3] = float("nan")
for width, length in ((3, 2), (7, 4), (7, 270)):
    expected = median_filter(x[:, :length], width)
    torch.testing.assert_close(
        median_rows(x[:, :length], width), expected, rtol=0, atol=0, equal_nan=True
    )

for levels in (3, 1000):
    cost = torch.randint(0, levels, (4, 9, 31), generator=dice) / 7 - 0.2
    rows, columns = torch.tensor([9, 4, 1, 9]), torch.tensor([31, 20, 7, 2])
    starts = row_starts(cost, rows, columns)
    for matrix, n, m, got in zip(cost, rows, columns, starts, strict=True):
        expected = np.rint(token_times(matrix[:n, :m]) / 0.02).astype(int)
        assert got[:n].tolist() == expected.tolist()
        assert not got[n:].any()
# lengths that lie apart in memory, as columns of a table do
apart = torch.stack([columns, rows], dim=1)
assert torch.equal(row_starts(cost, apart[:, 1], apart[:, 0]), starts)
assert row_starts(torch.rand(2, 3, 5)).shape == (2, 3)
assert row_starts(torch.rand(2, 0, 5)).shape == (2, 0)

x = torch.randn(5, 300, generator=dice)
lengths = torch.tensor([300, 7, 3, 256, 1], dtype=torch.int32)
ragged = median_rows(x, 7, lengths)
for row, length in enumerate(lengths.tolist()):
    assert torch.equal(ragged[row, :length], median_filter(x[row : row + 1, :length], 7)[0])
"""

# Each of Triton's slot kernels beside the plain one, with a row of its own length and place.
SLOTS = """
import torch
from torch import nn
from whisper_stream.model.gpu.kernels import PlainKernels, TritonKernels

torch.set_num_threads(1)
dice = torch.Generator().manual_seed(3)
plain, kernels = PlainKernels(), TritonKernels()

def draw(*shape):
    return torch.randn(*shape, generator=dice)

def same(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)

def whole(*values):
    return torch.tensor(values, dtype=torch.int32)

heads, size, places, slots = 3, 64, 100, 5
k, v = draw(slots, heads, places, size), draw(slots, heads, places, size)
for width in (1, 4, 20, 40):
    q = draw(3, width, 3 * heads * size)[:, :, : heads * size].view(3, width, heads, size)
    rows = whole(4, 0, 2)
    positions = (whole(50, 0, 10)[:, None] + torch.arange(width)).int()
    same(kernels.attend_text(q, k, v, rows, positions), plain.attend_text(q, k, v, rows, positions))
    lengths, tails = whole(100, 1, 70), whole(0, 66, 66)
    tail = draw(heads, 66, size), draw(heads, 66, size), tails
    for more in (None, tail):
        same(
            kernels.attend_audio(q, k, v, rows, lengths, more),
            plain.attend_audio(q, k, v, rows, lengths, more),
        )
one = whole(2).expand(4)  # lies in memory once
same(kernels.attend_audio(draw(4, 1, heads, size) * 0 + 1, k, v, one, whole(9).expand(4)),
     plain.attend_audio(draw(4, 1, heads, size) * 0 + 1, k, v, one, whole(9).expand(4)))

parts = draw(9, 3 * heads * size).view(9, 3, heads, size)
caches = [torch.zeros(slots, heads, places, size) for _ in range(4)]
where = whole(0, 0, 1, 2, 3, 4, 4, 4, 4), whole(0, 1, 5, 99, 7, 1, 2, 3, 4)
kernels.store(parts[:, 1], parts[:, 2], *caches[:2], *where)
plain.store(parts[:, 1], parts[:, 2], *caches[2:], *where)
assert torch.equal(caches[0], caches[2]) and torch.equal(caches[1], caches[3])

norm = nn.LayerNorm(200).requires_grad_(False)
norm.weight.copy_(draw(200))
norm.bias.copy_(draw(200))
x, delta = draw(7, 200), draw(7, 200)
a, b = x.clone(), x.clone()
for change in (delta, None):
    same(kernels.add_norm(a, change, norm), plain.add_norm(b, change, norm))
    assert torch.equal(a, b)
same(kernels.gelu(x.clone()), plain.gelu(x))

logits = draw(6, 9000) * 3
logits[1, 5] = logits[1, 7000] = 50  # the first of equals
logits[2, 5] = 60  # barred where a text begins
barred = torch.zeros(2, 9000)
barred[:, 100:200] = barred[1, 5] = -torch.inf
given = whole(0, 0, 1, 1, 0, 1), torch.zeros(6), whole(*[0] * 6), whole(-1, -1, -1, 77, 8999, -1)
chosen, expected = kernels.choose(logits, barred, *given), plain.choose(logits, barred, *given)
assert chosen[0].tolist() == expected[0].tolist()
assert chosen[0][1] == 5 and chosen[0][3] == 77
same(chosen[1], expected[1])
nothing = torch.full((1, 9000), float("nan"))
assert kernels.choose(nothing, barred, *(one[:1] for one in given))[0].item() < 9000

few = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(400, 1)
none = torch.zeros(400, dtype=torch.int32)
seeds = torch.arange(400, dtype=torch.int32)
drawn, _ = kernels.choose(few, torch.zeros(2, 4), none, torch.ones(400), seeds, none - 1)
shares = torch.bincount(drawn.long(), minlength=4) / 400
assert (shares - few[0].softmax(-1)).abs().max() < 0.08
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from whisper_stream.model.gpu import triton_attention, triton_dtw, triton_layers, triton_median

def compile(kernel, types, **constants):
    names = kernel.arg_names
    signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

types = ["*fp32", "*fp32", "*i32", "i32"]
median = compile(triton_median._median_kernel, types, RAGGED=True, WIDTH=7, BLOCK=256)
assert ".target sm_90" in median
types = ["*fp32", "*i8", "*fp32", "*i32", "*i32", "*i32", "i32", "i32"]
warping = compile(triton_dtw._dtw_kernel, types, BLOCK=512)
assert "bar.sync" in warping  # between diagonals

halves = ["*fp16"] * 4 + ["*i32", "*i32", "*fp16", "*fp16", "*i32"] + ["i32"] * 6 + ["fp32"]
sizes = {"SIZE": 64, "BLOCK_M": 16, "BLOCK_N": 64, "PRECISION": "tf32"}
attention = compile(triton_attention._attend_kernel, halves, CAUSAL=False, TAIL=True, **sizes)
assert "mma" in attention  # on the matrix units
types = ["*fp16", "*fp32", "*i32", "*fp32", "*i32", "*i32", "*i32", "*fp32", "i32"]
compile(triton_layers._choose_kernel, types, BLOCK=4096)
"""


def _run(script: str, tmp_path: Path, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.timeout(120)  # the interpreter runs every element in Python
def test_interpreted_kernels_equal_the_cpu(tmp_path: Path) -> None:
    _run(INTERPRETED, tmp_path, TRITON_INTERPRET="1")


@pytest.mark.timeout(120)  # the interpreter runs every element in Python
def test_interpreted_slot_kernels_equal_the_plain_ones(tmp_path: Path) -> None:
    _run(SLOTS, tmp_path, TRITON_INTERPRET="1")


@pytest.mark.timeout(120)  # compiles every kernel
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """The compiler needs no GPU, and refuses more than the interpreter does."""
    _run(COMPILED, tmp_path)


@pytest.fixture(autouse=True)
def all_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_fallback, "_unusable", set())


def _raising(error: Exception) -> SimpleNamespace:
    def kernel(x: Tensor) -> Tensor:
        raise error

    return SimpleNamespace(kernel=kernel)


def test_a_kernel_that_cannot_run_is_tried_and_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(1, 20)
    compiler = _raising(subprocess.CalledProcessError(1, "ptxas"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert try_kernel("triton_absent", "median_rows", x) is None
        monkeypatch.setattr(triton_fallback, "import_module", lambda *name: compiler)
        for _ in range(2):
            assert try_kernel("triton_median", "kernel", x) is None
    absent, median = caplog.messages
    assert absent.startswith("the GPU kernel triton_absent cannot run (ModuleNotFoundError)")
    assert median.startswith("the GPU kernel triton_median cannot run (CalledProcessError)")


def test_a_call_that_was_too_large_says_nothing_about_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_large = _raising(torch.OutOfMemoryError())
    monkeypatch.setattr(triton_fallback, "import_module", lambda *name: too_large)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            try_kernel("triton_dtw", "kernel", torch.ones(1))


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_fallback, "import_module", lambda *name: align)
    with pytest.raises(TypeError):
        try_kernel("align", "median_filter", torch.ones(1, 20), 7, 7)
    assert try_kernel("align", "median_filter", torch.ones(1, 20), 7) is not None


class _OnGpu(Tensor):
    is_cuda = True


def test_the_kernels_are_asked_first_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their answer where there is one, and the plain path's where there is none."""
    asked: list[str] = []
    answer: dict[str, Tensor] = {}

    def ask(module: str, function: str, x: Tensor, *arguments: int) -> Tensor | None:
        asked.append(f"{module}.{function}")
        return answer.get(module)

    monkeypatch.setattr(align, "try_kernel", ask)
    x = torch.rand(2, 3, 20)
    cost = torch.rand(5, 20)
    expected = median_filter(x, 7), token_times(cost)
    assert not asked
    on_gpu, cost_on_gpu = x.as_subclass(_OnGpu), cost.as_subclass(_OnGpu)
    assert torch.equal(median_filter(on_gpu, 7), expected[0])
    assert token_times(cost_on_gpu).tolist() == expected[1].tolist()
    assert asked == ["triton_median.median_rows", "triton_dtw.row_starts"]

    answer |= {
        "triton_median": torch.full((6, 20), 2.0),
        "triton_dtw": torch.tensor([[0, 1, 4, 5, 9]], dtype=torch.int32),
    }
    assert median_filter(on_gpu, 7).tolist() == torch.full((2, 3, 20), 2.0).tolist()
    assert token_times(cost_on_gpu).tolist() == pytest.approx([0, 0.02, 0.08, 0.1, 0.18])
