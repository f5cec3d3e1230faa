"""Settings of the native libraries: the environment before torch loads, and the arenas of the allocator."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from whisper_stream.model.cpu.runtime import (
    disable_mkl_buffers,
    limit_onednn_cache,
    trim_malloc,
    use_one_malloc_arena,
    use_passive_omp_wait,
)

# Threads that are alive at the same time take memory; then malloc_info counts the heaps.
THREADS = """
import ctypes, sys, threading
from whisper_stream.model.cpu.runtime import use_one_malloc_arena
if sys.argv[2] == "one":
    use_one_malloc_arena()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.fopen.restype = ctypes.c_void_p
there = threading.Barrier(3)
def take():
    assert library.malloc(ctypes.c_size_t(50_000))
    there.wait(20)
    there.wait(20)
for _ in range(2):
    threading.Thread(target=take, daemon=True).start()
there.wait(20)
file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
assert library.malloc_info(0, file) == 0
library.fclose(file)
there.wait(20)
"""


def heaps(folder: Path, how: str, **environment: str) -> int:
    told = folder / "heaps.xml"
    clean = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    subprocess.run(
        [sys.executable, "-c", THREADS, str(told), how],
        check=True,
        timeout=60,
        env={**clean, **environment},
    )
    return told.read_text().count("<heap ")


def test_threads_share_one_heap(tmp_path: Path) -> None:
    assert heaps(tmp_path, "own") == 3
    assert heaps(tmp_path, "one") == 1
    assert heaps(tmp_path, "one", MALLOC_ARENA_MAX="2") == 2


def test_elsewhere_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str | None) -> None:
        raise AssertionError(f"opened {name}")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    use_one_malloc_arena()
    trim_malloc()


def test_defaults_are_set_and_choices_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2000")
    use_passive_omp_wait()
    limit_onednn_cache()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "2000"
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    limit_onednn_cache()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"
    monkeypatch.setenv("MKL_DISABLE_FAST_MM", "0")
    disable_mkl_buffers()
    assert os.environ["MKL_DISABLE_FAST_MM"] == "0"
    monkeypatch.delenv("MKL_DISABLE_FAST_MM")
    disable_mkl_buffers()
    assert os.environ["MKL_DISABLE_FAST_MM"] == "1"
