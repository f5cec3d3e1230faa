"""``GET /metrics``: the daemon's counts in the text format of Prometheus.

The counts come from several processes and are added first, so a collector makes the metric families from one
sum at every scrape. The registry is our own: the library's process-wide one holds metrics of its own making.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ...streamer.engine.engine import EngineStatistics
from ..metrics import BUCKET_SECONDS, HistogramSnapshot
from ..process_stats import ProcessStats

__all__ = ["CONTENT_TYPE", "DaemonCollector", "render_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4"
_PREFIX = "whisper_stream_"
_BOUNDS = (*(f"{bound:g}" for bound in BUCKET_SECONDS), "+Inf")


class DaemonCollector(Collector):
    """The metric families of the whole daemon at one moment.

    Args:
        stats: the sum over all processes.
        load: share of the last seconds in which the engine decoded live speech, 0 to 1.
        engine: the engine's own statistics.
    """

    def __init__(self, stats: ProcessStats, load: float, engine: EngineStatistics) -> None:
        self._stats = stats
        self._load = load
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield every family: counters, histograms, then present values."""
        yield from self._counters()
        yield from self._histograms()
        for name, (text, value) in self._gauges().items():
            yield GaugeMetricFamily(_PREFIX + name, text, value)

    def _counters(self) -> Iterator[Metric]:
        counts = self._stats.metrics
        yield CounterMetricFamily(
            _PREFIX + "streams_opened", "Streams opened since the start.", counts.streams_opened
        )
        yield CounterMetricFamily(
            _PREFIX + "audio_seconds", "Seconds of audio received.", counts.audio_seconds
        )
        for name, text, label, by_label in (
            ("refusals", "Connections and requests refused.", "reason", counts.refusals),
            ("errors", "Errors that clients were told of.", "kind", counts.errors),
        ):
            family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
            for value in sorted(by_label):
                family.add_metric([value], by_label[value])
            yield family

    def _histograms(self) -> Iterator[Metric]:
        counts = self._stats.metrics
        for name, text, histogram in (
            ("commit_delay", "Time from a word's end to its commit.", counts.commit_delay),
            ("decode", "Time from the submission of a job to its result.", counts.decode_time),
            ("lag", "Lag as reported to clients.", counts.lag),
        ):
            yield HistogramMetricFamily(
                f"{_PREFIX}{name}_seconds", text, _buckets(histogram), histogram.total
            )

    def _gauges(self) -> dict[str, tuple[str, float]]:
        stats, gpu, engine = self._stats, self._stats.gpu, self._engine
        gauges: dict[str, tuple[str, float]] = {
            "streams": ("Streams that are open.", stats.streams),
            "connections": ("Websockets of clients.", stats.connections),
            "load": ("Share of the engine's time that live speech takes.", self._load),
            "cpu_seconds": ("Processor time of all processes.", stats.cpu_seconds),
            "memory_bytes": ("Resident memory of all processes.", stats.memory_bytes),
        }
        if gpu is not None:
            gauges["gpu_memory_bytes"] = ("GPU memory held for tensors.", gpu.memory_bytes)
            gauges["gpu_reserved_bytes"] = (
                "GPU memory taken from the driver.",
                gpu.reserved_bytes,
            )
            if gpu.utilization is not None:
                gauges["gpu_utilization"] = (
                    "Share of the time that the GPU was busy.",
                    gpu.utilization,
                )
        return gauges | {
            "engine_queued": ("Jobs that wait.", engine.queued),
            "engine_running": ("Jobs that are being decoded.", engine.running),
            "engine_done": ("Jobs decoded since the start.", engine.done),
            "engine_failed": ("Jobs that failed since the start.", engine.failed),
            "engine_audio_seconds": ("Audio of all windows decoded.", engine.audio_seconds),
            "engine_busy_seconds": ("Time spent decoding.", engine.busy_seconds),
            "engine_processes": ("Processes that decode.", engine.processes),
        }


def render_metrics(stats: ProcessStats, *, load: float, engine: EngineStatistics) -> bytes:
    """Return the body of ``GET /metrics``; the arguments are those of ``DaemonCollector``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DaemonCollector(stats, load, engine))
    return generate_latest(registry)


def _buckets(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    """Return the cumulative counts by upper bound."""
    counts = histogram.counts or (0,) * len(_BOUNDS)
    return list(zip(_BOUNDS, accumulate(counts), strict=True))
