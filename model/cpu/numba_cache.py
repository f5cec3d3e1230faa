"""numba's compiler as this package uses it: machine code kept on disk, no GIL while it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.extending import intrinsic as _numba_intrinsic

__all__ = ["compiled", "intrinsic"]


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """``function``, compiled at its first call; the result is kept for later processes where it can be.

    What is kept serves the same source only: that of the function's file, and of the ``kernel*.py``
    beside it, which are compiled into it.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        # numba looks at the time of the function's own file alone, and names what it keeps by this
        function.__qualname__ += f"-{_digest(Path(function.__code__.co_filename))}"
        return njit(cache=True, **options)(function)
    except (
        OSError,
        RuntimeError,
    ):  # no source, or neither this folder nor the user's cache is ours
        return njit(**options)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """``function`` as one that writes LLVM code into its callers.

    numba's own decorator, whose type would have them pass the typing context too.
    """
    return _numba_intrinsic(function)


def _digest(file: Path) -> str:
    """Of the text of ``file`` and of the kernels beside it. Raises OSError."""
    found = hashlib.sha256()
    for part in sorted({file, *file.parent.glob("kernel*.py")}):
        found.update(hashlib.sha256(part.read_bytes()).digest())
    return found.hexdigest()[:16]
