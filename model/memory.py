"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["release_freed"]


def release_freed() -> None:
    """Returns freed memory that the allocator keeps. Loading a model frees more than the model takes.

    Does something with the GNU C library only; elsewhere the allocator is left to itself.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
