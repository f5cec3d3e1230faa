"""What a server says about its cost while a load runs."""

from __future__ import annotations

import asyncio
import urllib.request

import msgspec
from whisper_stream.clients.tools.load_run import (
    GpuUse,
    Health,
    ServerWatch,
    health_url,
    read_health,
)

from ...helpers.fake_server import fake_server
from ...helpers.server_rig import ScriptedEngine, daemon


def test_a_server_tells_what_it_uses() -> None:
    assert health_url("wss://host:1/v1/stream?key=a") == "https://host:1/healthz?key=a"
    with daemon(ScriptedEngine()) as running:
        told = asyncio.run(read_health(running.url))
        with urllib.request.urlopen(f"{running.http}/healthz") as answer:
            later = msgspec.json.decode(answer.read())
    assert told.cpu_seconds is not None and 0 < told.cpu_seconds <= later["cpu_seconds"]
    assert told.memory_bytes is not None and told.memory_bytes > 10_000_000
    assert told.gpu is None and "gpu" not in later  # no model runs on one here


def test_what_is_seen_while_a_load_runs() -> None:
    watch = ServerWatch("ws://nowhere", Health(cpu_seconds=1.0, memory_bytes=100))
    gpu = GpuUse(memory_bytes=7, utilization=0.5)
    watch.add(Health(cpu_seconds=2.0, memory_bytes=180, gpu=gpu))
    watch.add(Health())  # it did not answer in time
    watch.add(
        Health(cpu_seconds=4.0, memory_bytes=150, gpu=GpuUse(memory_bytes=5, utilization=1.0))
    )
    assert (watch.cpu_seconds, watch.memory_growth) == (3.0, 80)
    assert (watch.gpu_utilization, watch.gpu_memory) == (0.75, 7)
    silent = ServerWatch("ws://nowhere", Health())
    silent.add(Health())
    assert (silent.cpu_seconds, silent.memory_growth) == (None, None)
    assert (silent.gpu_utilization, silent.gpu_memory) == (None, None)


def test_a_server_that_does_not_tell() -> None:
    with fake_server() as server:
        assert asyncio.run(read_health(server.url)) == Health()
    assert asyncio.run(read_health(server.url)) == Health()  # gone
