"""What one process of the daemon has counted and used, and the sum of several.

What this process uses of its machine: processors, memory, and a GPU if the model runs on one.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import msgspec

from .metrics import MetricsState

__all__ = ["ProcessStats", "GpuUsage", "cpu_seconds", "figures", "gpu", "memory_bytes"]


class GpuUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU of a process as its driver and PyTorch tell; or those of several processes."""

    memory_bytes: int  # held for tensors
    reserved_bytes: int  # taken from the driver
    utilization: float | None = (
        None  # share of the time it was busy lately, 0 to 1; of several, the busiest
    )

    def __add__(self, other: GpuUsage) -> GpuUsage:
        told = [each for each in (self.utilization, other.utilization) if each is not None]
        return GpuUsage(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            reserved_bytes=self.reserved_bytes + other.reserved_bytes,
            utilization=max(told, default=None),
        )


class ProcessStats(msgspec.Struct, frozen=True, kw_only=True):
    """``cpu_seconds`` since each process began; ``memory_bytes`` resident now."""

    streams: int = 0
    connections: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    gpu: GpuUsage | None = None
    metrics: MetricsState = msgspec.field(default_factory=MetricsState)

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
        """What remains of a process that has ended: what it counted, not what it held."""
        return ProcessStats(cpu_seconds=self.cpu_seconds, metrics=self.metrics)


_STATM = Path("/proc/self/statm")


def figures() -> ProcessStats:
    """All of it."""
    return ProcessStats(cpu_seconds=cpu_seconds(), memory_bytes=memory_bytes(), gpu=gpu())


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


def gpu() -> GpuUsage | None:
    """The current GPU; None where this process has started none, and nothing is started here."""
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
