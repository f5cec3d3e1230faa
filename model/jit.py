"""numba's compiler as this package uses it: machine code kept on disk, no GIL while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.extending import intrinsic as _numba_intrinsic

__all__ = ["compiled", "intrinsic"]


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """``function``, compiled at its first call; the result is kept for later processes where it can be."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        return njit(**options)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """``function`` as one that writes LLVM code into its callers.

    numba's own decorator, whose type would have them pass the typing context too.
    """
    return _numba_intrinsic(function)
