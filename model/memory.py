"""How much memory the allocator keeps: one heap for all threads, and what is free given back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

__all__ = ["release_freed", "share_one_heap"]

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
