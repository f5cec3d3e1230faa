"""Resources that one process of the daemon uses, what it has counted, and the sums over several processes."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import msgspec

from .metrics import MetricsSnapshot

__all__ = [
    "GpuUsage",
    "ProcessStats",
    "cpu_seconds",
    "gpu_usage",
    "measure_process",
    "memory_bytes",
]

_STATM = Path("/proc/self/statm")


class GpuUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Use of a GPU by one process, as its driver and PyTorch report it; or the sum of several.

    Attributes:
        memory_bytes: held for tensors.
        reserved_bytes: taken from the driver.
        utilization: share of the last moments in which it was busy, 0 to 1; of several, the highest.
    """

    memory_bytes: int
    reserved_bytes: int
    utilization: float | None = None

    def __add__(self, other: GpuUsage) -> GpuUsage:
        known = [each for each in (self.utilization, other.utilization) if each is not None]
        return GpuUsage(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            reserved_bytes=self.reserved_bytes + other.reserved_bytes,
            utilization=max(known, default=None),
        )


class ProcessStats(msgspec.Struct, frozen=True, kw_only=True):
    """Use and counts of one process, or the sum of several.

    Attributes:
        streams, connections: open now.
        cpu_seconds: processor time since the process began.
        memory_bytes: resident now.
        gpu: None where no model runs on a GPU.
        metrics: everything counted so far.
    """

    streams: int = 0
    connections: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    gpu: GpuUsage | None = None
    metrics: MetricsSnapshot = MetricsSnapshot()

    def __add__(self, other: ProcessStats) -> ProcessStats:
        return ProcessStats(
            streams=self.streams + other.streams,
            connections=self.connections + other.connections,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpu=self.gpu + other.gpu if self.gpu and other.gpu else self.gpu or other.gpu,
            metrics=self.metrics + other.metrics,
        )

    @property
    def past(self) -> ProcessStats:
        """The part that stays in the sums once the process has ended: its counts, not what it held."""
        return ProcessStats(cpu_seconds=self.cpu_seconds, metrics=self.metrics)


def measure_process() -> ProcessStats:
    """Return what this process uses now: processors, memory, GPU."""
    return ProcessStats(cpu_seconds=cpu_seconds(), memory_bytes=memory_bytes(), gpu=gpu_usage())


def cpu_seconds() -> float:
    """Return the processor time of all threads since the process began, in seconds."""
    return time.process_time()


def memory_bytes() -> int:
    """Return the resident memory, in bytes; its peak where the system tells nothing else."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def gpu_usage() -> GpuUsage | None:
    """Return the use of the current GPU; None where this process uses none. Never initialises one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        utilization = torch.cuda.utilization() / 100
    except (ImportError, RuntimeError, OSError, AttributeError):
        utilization = None  # the driver's library is not there
    return GpuUsage(
        memory_bytes=torch.cuda.memory_allocated(),
        reserved_bytes=torch.cuda.memory_reserved(),
        utilization=utilization,
    )
