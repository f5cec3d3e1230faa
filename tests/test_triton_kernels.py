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
from whisper_stream.model import align, triton_fallback
from whisper_stream.model.align import median_filter, token_times
from whisper_stream.model.triton_fallback import try_kernel

# Values from few levels give many ties, which must fall the same way as on the CPU.
INTERPRETED = """
import numpy as np, torch
from whisper_stream.model.align import median_filter, token_times
from whisper_stream.model.triton_dtw import row_starts
from whisper_stream.model.triton_median import median_rows

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
assert row_starts(torch.rand(2, 3, 5)).shape == (2, 3)
assert row_starts(torch.rand(2, 0, 5)).shape == (2, 0)
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from whisper_stream.model import triton_dtw, triton_median

def compile(kernel, types, **constants):
    names = kernel.arg_names
    signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

median = compile(triton_median._median_kernel, ["*fp32", "*fp32", "i32"], WIDTH=7, BLOCK=256)
assert ".target sm_90" in median
types = ["*fp32", "*i8", "*fp32", "*i32", "*i32", "*i32", "i32", "i32"]
warping = compile(triton_dtw._dtw_kernel, types, BLOCK=512)
assert "bar.sync" in warping  # between diagonals
"""


def _run(script: str, tmp_path: Path, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_interpreted_kernels_equal_the_cpu(tmp_path: Path) -> None:
    _run(INTERPRETED, tmp_path, TRITON_INTERPRET="1")


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


def test_other_errors_are_not_swallowed() -> None:
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
