"""Traces of streams: waveform, words and their moments, bounded in time and number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.trace import KEPT_SECONDS, Debug, Trace

from ...helpers.fake_server import word


class Listened:
    """A trace, and how much its stream has heard."""

    def __init__(self) -> None:
        self.samples = 0
        self.trace = Trace("s", "tiny", lambda: 0.0)

    def hear(self, samples: np.ndarray[Any, Any]) -> None:
        self.samples += samples.size
        self.trace.on_audio(samples.astype(np.float32), self.samples / 16_000)

    def say(self, message: wire.ServerMessage) -> None:
        self.trace.on_message(message, self.samples / 16_000)


def test_words_know_when_they_were_shown_and_committed() -> None:
    stream = Listened()
    second = np.zeros(16_000)
    nut, note = word(" nut", 0.4, 0.8), word(" not,", 0.45, 0.85)
    stream.hear(second)
    stream.say(wire.Partial(text=" nut", words=(nut,)))
    stream.hear(second)
    stream.say(wire.Partial(text=" Not", words=(word(" Not", 0.5, 0.9),)))
    shown = stream.trace.snapshot()["words"]
    assert [(each["text"], each["shown"], each["committed"]) for each in shown] == [
        (" Not", 2.0, None)
    ]
    stream.hear(second)
    stream.say(wire.Commit(text=" not,", words=(note,)))
    snapshot = stream.trace.snapshot()
    assert [(each["shown"], each["committed"]) for each in snapshot["words"]] == [(2.0, 3.0)]
    assert snapshot["summary"]["Committed after"] == "2.15 s (95 %: 2.15 s)"


@pytest.mark.parametrize("size", [1, 97, 160, 5_000])
def test_the_waveform_is_that_of_the_audio_however_it_is_cut(size: int) -> None:
    stream = Listened()
    samples = np.concatenate([np.zeros(800), np.full(800, -1.0), np.full(160, 0.5)])
    for at in range(0, samples.size, size):
        stream.hear(samples[at : at + size])
    assert stream.trace.snapshot()["peaks"] == [0] * 5 + [127] * 5 + [63]


def test_only_the_last_minutes_are_kept() -> None:
    stream = Listened()
    early, late = word(" early", 0.1, 0.5), word(" late", 20.0, 20.5)
    stream.say(wire.Commit(text=" early late", words=(early, late)))
    for _ in range(KEPT_SECONDS + 10):
        stream.hear(np.ones(16_000))
    snapshot = stream.trace.snapshot()
    assert snapshot["from"] == 10.0 and snapshot["duration"] == KEPT_SECONDS + 10
    assert len(snapshot["peaks"]) == KEPT_SECONDS * 100
    assert [each["text"] for each in snapshot["words"]] == [" late"]


def test_streams_are_forgotten_after_a_while_and_when_there_are_many() -> None:
    now = 0.0
    debug = Debug("tiny", 60.0, lambda: now)
    debug.trace("old")
    now = 50.0
    debug.trace("new")
    assert [each["id"] for each in debug.streams()] == ["new", "old"]
    now = 70.0
    assert debug.find("old") is None and debug.find("new") is not None
    for number in range(40):
        debug.trace(str(number))
    assert [each["id"] for each in debug.streams()] == [str(n) for n in range(39, 23, -1)]


def test_a_stream_that_was_brought_back_is_drawn_from_where_it_is_heard() -> None:
    stream = Listened()
    stream.samples = 50 * 16_000
    stream.hear(np.ones(16_000))
    snapshot = stream.trace.snapshot()
    assert (snapshot["from"], snapshot["duration"]) == (50.0, 51.0)
