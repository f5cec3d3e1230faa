"""What processes use, and the sums of several."""

from __future__ import annotations

import os

from whisper_stream.server.metrics import MetricsSnapshot
from whisper_stream.server.process_stats import GpuUsage, ProcessStats, measure_process


def test_statistics_add_up_and_what_was_counted_stays() -> None:
    gpu = GpuUsage(memory_bytes=1, reserved_bytes=2, utilization=0.5)
    counted = MetricsSnapshot(streams_opened=3)
    one = ProcessStats(streams=1, connections=2, cpu_seconds=0.5, metrics=counted)
    two = ProcessStats(streams=4, memory_bytes=9, gpu=gpu, metrics=counted)
    both = one + two + ProcessStats()
    assert (both.streams, both.connections, both.cpu_seconds, both.memory_bytes) == (5, 2, 0.5, 9)
    assert both.gpu == gpu and both.metrics.streams_opened == 6
    assert both.past == ProcessStats(cpu_seconds=0.5, metrics=both.metrics)


def test_the_busiest_gpu_counts() -> None:
    total = sum(
        (GpuUsage(memory_bytes=1, reserved_bytes=1, utilization=u) for u in (None, 0.9, 0.2)),
        start=GpuUsage(memory_bytes=0, reserved_bytes=0),
    )
    assert total == GpuUsage(memory_bytes=3, reserved_bytes=3, utilization=0.9)


def test_a_process_is_measured() -> None:
    stats = measure_process()
    assert stats.cpu_seconds > 0
    assert 2**20 < stats.memory_bytes < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
