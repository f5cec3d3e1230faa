"""What one process of the daemon has counted and used, and the sum of several."""

from __future__ import annotations

import msgspec

from .metrics import MetricsState

__all__ = ["Figures", "Gpu"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU of a process as its driver and PyTorch tell; or those of several processes."""

    memory_bytes: int  # held for tensors
    reserved_bytes: int  # taken from the driver
    utilization: float | None = (
        None  # share of the time it was busy lately, 0 to 1; of several, the busiest
    )

    def __add__(self, other: Gpu) -> Gpu:
        told = [each for each in (self.utilization, other.utilization) if each is not None]
        return Gpu(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            reserved_bytes=self.reserved_bytes + other.reserved_bytes,
            utilization=max(told, default=None),
        )


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """``cpu_seconds`` since each process began; ``memory_bytes`` resident now."""

    streams: int = 0
    connections: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    gpu: Gpu | None = None
    metrics: MetricsState = msgspec.field(default_factory=MetricsState)

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            streams=self.streams + other.streams,
            connections=self.connections + other.connections,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpu=self.gpu + other.gpu if self.gpu and other.gpu else self.gpu or other.gpu,
            metrics=self.metrics + other.metrics,
        )

    @property
    def past(self) -> Figures:
        """What remains of a process that has ended: what it counted, not what it held."""
        return Figures(cpu_seconds=self.cpu_seconds, metrics=self.metrics)
