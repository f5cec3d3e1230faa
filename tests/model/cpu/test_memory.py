"""One heap for all threads, by what the GNU C library says of its heaps."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from whisper_stream.model.cpu.runtime import release_freed, share_one_heap

# Threads that are alive at the same time take memory; then malloc_info counts the heaps.
THREADS = """
import ctypes, sys, threading
from whisper_stream.model.cpu.runtime import share_one_heap
if sys.argv[2] == "one":
    share_one_heap()
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
    share_one_heap()
    release_freed()
