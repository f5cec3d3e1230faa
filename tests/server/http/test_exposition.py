"""``/metrics``: what is counted, and the form that Prometheus reads."""

from __future__ import annotations

import math
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from whisper_stream.server.http.exposition import CONTENT_TYPE, render_metrics
from whisper_stream.server.metrics import Metrics
from whisper_stream.server.process_stats import GpuUsage, ProcessStats
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.engine.engine import EngineStatistics

from ...helpers.server_rig import Daemon, daemon, speech

IDLE = EngineStatistics(queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=0.0)


def get(running: Daemon, path: str) -> str:
    with urllib.request.urlopen(running.http + path) as answer:
        text: str = answer.read().decode()
    return text


def values(text: str) -> dict[str, float]:
    """Every sample by its name with labels, as the library's own parser reads the text."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge", "histogram") and family.documentation
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_metrics_count_what_happens() -> None:
    with daemon(max_streams=1) as running, running.connect() as peer:
        peer.send(wire.Start())
        peer.until(wire.Ready)
        with running.connect() as second:
            second.send(wire.Start())
            second.rest()
        before = values(get(running, "/metrics"))
        peer.audio(speech(2.0))
        peer.send(wire.Eos())
        peer.rest()
        after = values(get(running, "/metrics"))
    prefix = "whisper_stream_"
    assert before[f"{prefix}streams"] == 1
    assert after[f"{prefix}streams_opened_total"] == 1
    assert after[f'{prefix}refusals_total{{reason="too_many_streams"}}'] == 1
    assert after[f'{prefix}errors_total{{kind="too_many_streams"}}'] == 1
    assert after[f"{prefix}audio_seconds_total"] == 2
    assert after[f"{prefix}commit_delay_seconds_count"] == 4
    assert after[f"{prefix}decode_seconds_count"] == 4
    assert after[f"{prefix}engine_done"] == 4


def test_histograms_are_cumulative_and_large_numbers_exact() -> None:
    metrics = Metrics()
    metrics.audio_seconds = 12_345_678.5
    for seconds in (0.5, 1.0, 1.5, 99.0):
        metrics.lag.observe(seconds)
    gpu = GpuUsage(memory_bytes=3, reserved_bytes=2**40 + 1, utilization=0.5)
    stats = ProcessStats(streams=2, gpu=gpu, metrics=metrics.snapshot())
    found = values(render_metrics(stats, load=0.25, engine=IDLE).decode())
    prefix = "whisper_stream_"
    assert found[f"{prefix}audio_seconds_total"] == 12_345_678.5
    buckets = {
        each: found[f'{prefix}lag_seconds_bucket{{le="{each}"}}']
        for each in ("0.5", "1", "2", "+Inf")
    }
    assert buckets == {"0.5": 1, "1": 2, "2": 3, "+Inf": 4}
    assert math.isclose(found[f"{prefix}lag_seconds_sum"], 102.0)
    assert found[f"{prefix}lag_seconds_count"] == 4
    assert found[f'{prefix}decode_seconds_bucket{{le="+Inf"}}'] == 0
    assert found[f"{prefix}gpu_reserved_bytes"] == 2**40 + 1
    assert found[f"{prefix}load"] == 0.25


def test_without_a_gpu_there_are_no_metrics_of_one() -> None:
    text = render_metrics(ProcessStats(), load=0.0, engine=IDLE).decode()
    assert "_gpu_" not in text and values(text)["whisper_stream_engine_processes"] == 1


def test_with_keys_metrics_want_one(tmp_path: object) -> None:
    path = f"{tmp_path}/keys"
    with open(path, "w") as file:
        file.write("anna:0123456789abcdef\n")
    with daemon(api_keys=path) as running:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(running, "/metrics")
        with urllib.request.urlopen(running.http + "/metrics?key=0123456789abcdef") as answer:
            assert answer.headers["content-type"].startswith(CONTENT_TYPE)
            assert values(answer.read().decode())["whisper_stream_streams"] == 0
