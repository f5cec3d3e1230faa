"""What this process uses of its machine: processors, memory, and a GPU if the model runs on one."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from .figures import Figures, Gpu

__all__ = ["cpu_seconds", "figures", "gpu", "memory_bytes"]

_STATM = Path("/proc/self/statm")


def figures() -> Figures:
    """All of it."""
    return Figures(cpu_seconds=cpu_seconds(), memory_bytes=memory_bytes(), gpu=gpu())


def cpu_seconds() -> float:
    """Processor seconds of all threads since the process began."""
    return time.process_time()


def memory_bytes() -> int:
    """Resident memory; where the system does not tell, the most there ever was."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def gpu() -> Gpu | None:
    """The current GPU; None where this process has started none, and nothing is started here."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        utilization = torch.cuda.utilization() / 100
    except (ImportError, RuntimeError, OSError, AttributeError):
        utilization = None  # the driver's library is not there
    return Gpu(
        memory_bytes=torch.cuda.memory_allocated(),
        reserved_bytes=torch.cuda.memory_reserved(),
        utilization=utilization,
    )
