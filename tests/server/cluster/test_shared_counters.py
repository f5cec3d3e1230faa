"""Counts in memory that several processes share."""

from __future__ import annotations

import datetime
import os

from whisper_stream.server.cluster.shared_counters import SharedCounters, SharedKeyUsage
from whisper_stream.server.http.admission import Admission
from whisper_stream.server.http.auth import Account
from whisper_stream.streamer.engine.engine import EngineStatistics


def test_counts_are_shared_and_those_of_the_dead_are_taken_back() -> None:
    first = SharedCounters.create(0)
    second = SharedCounters(os.dup(first.descriptor), 1)
    first.publish(3, 4)
    second.publish(2, 2)
    assert (first.streams, first.connections) == (second.streams, second.connections) == (5, 6)
    digest = bytes(range(32))
    mine, theirs = (
        Account(name="a", digest=digest, most_seconds=60.0, usage=SharedKeyUsage(counters, digest))
        for counters in (first, second)
    )
    usage = SharedKeyUsage(second, digest[::-1])
    other = Account(name="b", digest=digest[::-1], most_bytes=10, usage=usage)
    mine.usage.add_streams(1)
    theirs.usage.add_streams(2)
    other.usage.add_streams(1)
    streams = [account.usage.streams for account in (mine, theirs, other)]
    assert streams == [3, 3, 1]
    today = datetime.date(2026, 5, 1)
    assert mine.count_audio(today, 0, 40.0) is None
    assert theirs.count_audio(today, 0, 20.0) is None
    assert theirs.count_audio(today, 0, 1.0) == "1 minutes of audio a day"
    assert mine.count_audio(today + datetime.timedelta(1), 0, 40.0) is None  # a new day
    assert other.count_audio(today, 11, 0.0) == "10 bytes of audio a day"
    first.clear(1)
    assert (first.streams, first.connections) == (3, 4)
    assert (mine.usage.streams, other.usage.streams) == (1, 0)


def test_streams_are_admitted_by_what_all_processes_let_in() -> None:
    counters = SharedCounters.create(0)
    one = Admission(0.9, log=counters)
    two = Admission(0.9, log=SharedCounters(os.dup(counters.descriptor), 1))
    idle = EngineStatistics(
        queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=0.0
    )
    for each in (one, two):
        each.observe(1.0, idle, 0)
        each.observe(2.0, idle, 0)
    admitted = 0
    while two.admits(2.0, max(1, admitted)) and admitted < 100:
        one.add(2.0)
        admitted += 1
    assert 0 < admitted < 20  # an unmeasured stream is taken for a sixteenth of the engine
    assert two.admits(8.0, admitted)  # they show in the load by now
