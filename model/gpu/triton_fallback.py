"""Runs a Triton kernel where it can be run; logs once where it cannot, so that the plain path is taken."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

__all__ = ["cannot_run", "try_kernel"]

_log = logging.getLogger(__name__)

# What importing, compiling and launching may raise where Triton, a C compiler, ptxas or the driver
# is missing. Triton's own errors are told by their module: it may not be importable.
_FAILURES = (ImportError, AssertionError, OSError, RuntimeError, subprocess.SubprocessError)

_unusable: set[str] = set()  # modules that failed: trying again would cost a compilation each time


def try_kernel(module: str, function: str, x: Tensor, *arguments: int | Tensor) -> Tensor | None:
    """``function(x, *arguments)`` of this package's ``module``; None where it cannot run.

    The first failure of a module is logged as a warning, and is its last.

    Raises:
        torch.OutOfMemoryError: this call was too large, which says nothing about the next.
    """
    if module in _unusable:
        return None
    try:
        kernel: Callable[..., Tensor] = getattr(import_module(f".{module}", __package__), function)
        # Triton launches on the current device
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            return kernel(x, *arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not cannot_run(error):
            raise
        _unusable.add(module)
        _log.warning(
            "the GPU kernel %s cannot run (%s): a slower way is used from now on",
            module,
            type(error).__name__,
        )
        return None


def cannot_run(error: Exception) -> bool:
    """Return whether ``error`` means that Triton cannot run here, rather than that the work was wrong or too large."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, _FAILURES) or type(error).__module__.startswith("triton.")
