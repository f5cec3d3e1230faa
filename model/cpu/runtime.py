"""How PyTorch's threads wait, and what oneDNN and MKL keep. No torch here: it is settled before torch loads.

How much memory the allocator keeps: one heap for all threads, and what is free given back to the system.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

__all__ = [
    "MOST_THREADS",
    "keep_little_code",
    "keep_no_buffers",
    "release_freed",
    "share_one_heap",
    "wait_politely",
]

MOST_THREADS = 512  # that may be asked for; OpenMP crashes where it cannot make them


def wait_politely() -> None:
    """Makes OpenMP's threads sleep while they wait, unless the environment already says how.

    By default they spin. That costs nothing on an idle machine, but as soon as another program wants
    a core, each of the hundreds of small steps of a decode waits for a thread that spins on the wrong
    one: an update then takes ten times as long. Call before torch is first imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_little_code() -> None:
    """Makes oneDNN keep the machine code of the last 256 shapes, unless the environment says how many.

    It compiles some for every shape it meets, and keeps 1024 by default: a stream without a breath, whose
    windows and texts have every length there is, then takes 50 MB more, and still grows after five
    minutes. 256 are those of all lengths of windows. Call before torch is first imported.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def keep_no_buffers() -> None:
    """Makes MKL free the buffers of a product after it, unless the environment says otherwise.

    It would keep 6 MB for every thread that ever made a spectrogram, and none of that is of use to
    anything else. Call before torch is first imported.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")


_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_one_heap() -> None:
    """Makes all threads take memory from one heap, unless the environment already says from how many.

    By default each has its own, and keeps in it as much as its largest decode took, while the others
    need little. Call before there are threads.
    """
    mallopt = _of_gnu("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_ARENA_MAX, 1)


def release_freed() -> None:
    """Returns freed memory that the allocator keeps. Loading a model frees more than the model takes."""
    trim = _of_gnu("malloc_trim")
    if trim is not None:
        trim(0)


def _of_gnu(name: str) -> Callable[..., int] | None:
    """A function of the GNU C library; None elsewhere, where the allocator is left to itself."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    # musl has a mallopt of a kind, but no malloc_trim
    return getattr(library, name, None) if hasattr(library, "malloc_trim") else None
