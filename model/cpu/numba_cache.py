"""numba's compiler as this package uses it: machine code kept on disk, no GIL while it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numba import njit
from numba.extending import intrinsic as _numba_intrinsic

__all__ = ["cached_njit", "intrinsic"]


def cached_njit(
    function: Callable[..., Any], *, sources: Iterable[str] = (), **options: Any
) -> Any:
    """Compile ``function`` at its first call, and keep the result for later processes where it can be.

    Kept code is used again only for the same text of the function's own file, of ``sources`` and of
    this file: numba itself looks at the time of the function's own file alone.

    Args:
        function: of a module with a source file.
        sources: the ``__file__`` of every other module that is compiled into the function.
        options: for numba's ``njit``, above the GIL being released and numpy's rules for division.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        # numba names what it keeps by this
        function.__qualname__ += f"-{_digest([function.__code__.co_filename, *sources])}"
        return njit(cache=True, **options)(function)
    except (OSError, RuntimeError):
        # no source, or neither the function's folder nor the user's cache is ours
        return njit(**options)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make ``function`` one that writes LLVM code into its callers.

    numba's own decorator, whose type would have them pass the typing context too.
    """
    return _numba_intrinsic(function)


def _digest(files: Iterable[str]) -> str:
    """Hash the text of ``files`` and of this one. Raises OSError."""
    found = hashlib.sha256()
    for file in (*files, __file__):
        found.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return found.hexdigest()[:16]
