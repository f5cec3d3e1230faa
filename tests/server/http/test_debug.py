"""``serve --debug``: what is shown of streams, to whom, and for how long."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.http.auth import Authenticator
from whisper_stream.server.http.debug import check_debug
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.trace import KEPT_SECONDS, Debug, Trace

from ...helpers.fake_server import word
from ...helpers.server_rig import daemon, speech

KEY = "k" * 16
OTHER = "o" * 16


def get(address: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return json.load(answer)


def status(address: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(address, **headers)
    refused.value.close()
    return refused.value.code


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


def test_a_stream_is_shown_on_this_machine_until_it_is_deleted() -> None:
    with daemon(debug=True) as running, running.connect() as peer:
        peer.send(wire.Start())
        ready = peer.receive()
        assert isinstance(ready, wire.Ready)
        peer.audio(speech(1.0))
        peer.send(wire.Eos())
        peer.until(wire.Done)
        at = f"{running.http}/debug/streams"
        assert get(at) == [{"id": ready.session, "state": "done"}]
        snapshot = get(f"{at}/{ready.session}")
        assert len(snapshot["words"]) == 2 and len(snapshot["peaks"]) == 100
        assert snapshot["summary"]["Model"] == "scripted"
        assert status(at, Host="captions.test") == 403  # a name that was pointed here
        bearer = {"Authorization": f"Bearer {ready.token}"}
        url = f"{running.http}/v1/sessions/{ready.session}"
        urllib.request.urlopen(urllib.request.Request(url, headers=bearer, method="DELETE")).close()
        assert get(at) == [] and status(f"{at}/{ready.session}") == 404


def test_it_is_off_unless_it_is_asked_for() -> None:
    with daemon() as running:
        assert status(f"{running.http}/debug") == status(f"{running.http}/debug/streams") == 404


def test_with_keys_only_the_one_named_debug_sees_streams(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"debug:{KEY}\nanna:{OTHER}\n")
    with daemon(debug=True, api_keys=str(keys)) as running:
        at = f"{running.http}/debug/streams"
        assert get(at, **{"X-API-Key": KEY}) == []
        assert status(at) == status(at, **{"X-API-Key": OTHER}) == 401
        with urllib.request.urlopen(f"{running.http}/debug") as page:
            rules = page.headers["Content-Security-Policy"].split("; ")
    assert rules[:2] == ["default-src 'none'", "script-src 'self'"]
    assert not any("unsafe" in rule or "*" in rule for rule in rules)


def test_without_a_key_it_is_not_shown_to_a_network() -> None:
    config = ServerConfig(host="0.0.0.0", debug=True)
    with pytest.raises(ConfigError, match="listen on 127.0.0.1, or give a key named debug"):
        check_debug(config, Authenticator([], [], local=False))
