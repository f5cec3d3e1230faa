"""Settings of the native libraries under PyTorch: OpenMP, oneDNN, MKL and the C allocator.

No torch here: all but ``trim_malloc`` must be called before torch is first imported, and before there are
threads. Each respects what the environment already says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

__all__ = [
    "MOST_THREADS",
    "limit_onednn_cache",
    "disable_mkl_buffers",
    "trim_malloc",
    "use_one_malloc_arena",
    "use_passive_omp_wait",
]

MOST_THREADS = 512  # that may be asked for; OpenMP crashes where it cannot make them


def use_passive_omp_wait() -> None:
    """Make OpenMP's threads sleep while they wait.

    By default they spin. That costs nothing on an idle machine, but as soon as another program wants
    a core, each of the hundreds of small steps of a decode waits for a thread that spins on the wrong
    one: an update then takes ten times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def limit_onednn_cache() -> None:
    """Make oneDNN keep the machine code of the last 256 shapes only.

    It compiles some for every shape it meets, and keeps 1024 by default: a stream without a breath, whose
    windows and texts have every length there is, then takes 50 MB more, and still grows after five
    minutes. 256 are those of all lengths of windows.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def disable_mkl_buffers() -> None:
    """Make MKL free the buffers of a matrix product after it.

    It would keep 6 MB for every thread that ever made a spectrogram, and none of that is of use to
    anything else.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")


_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def use_one_malloc_arena() -> None:
    """Make all threads take memory from one arena of the GNU allocator.

    By default each has its own, and keeps in it as much as its largest decode took, while the others
    need little.
    """
    mallopt = _glibc_function("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_ARENA_MAX, 1)


def trim_malloc() -> None:
    """Give freed memory back to the system. Loading a model frees more than the model takes.

    May take tens of milliseconds: call it where nothing waits, and with no lock held.
    """
    trim = _glibc_function("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc_function(name: str) -> Callable[..., int] | None:
    """Return a function of the GNU C library; None elsewhere, where the allocator is left to itself."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    # musl has a mallopt of a kind, but no malloc_trim
    return getattr(library, name, None) if hasattr(library, "malloc_trim") else None
