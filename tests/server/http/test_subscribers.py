"""Readers join at any moment and read the same; they can do nothing else."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import Daemon, Peer, ScriptedEngine, daemon, speech


def texts(messages: list[wire.ServerMessage]) -> str:
    """What a reader has seen committed."""
    text = ""
    for message in messages:
        match message:
            case wire.Snapshot(segments=segments, words=words):
                text += "".join(s.text for s in segments) + "".join(w.text for w in words)
            case wire.Commit():
                text += message.text
    return text


def opened(peer: Peer) -> wire.Ready:
    peer.send(wire.Start(resume=True))
    ready = peer.receive()
    assert isinstance(ready, wire.Ready)
    return ready


def watch_url(running: Daemon, ready: wire.Ready) -> str:
    return f"ws://127.0.0.1:{running.port}{ready.watch}"


@pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)
def test_readers_who_join_at_different_times_read_the_same(subprotocol: str) -> None:
    with daemon() as running, running.connect() as speaker:
        ready = opened(speaker)
        url = watch_url(running, ready)
        with running.connect(subprotocol, url=url) as early:
            assert early.receive() == wire.Snapshot(seq=1, segments=(), words=(), partial=())
            speaker.audio(speech(2.0))
            got = early.until(wire.Commit)
            with running.connect(subprotocol, url=url) as late:
                first = late.receive()
                assert isinstance(first, wire.Snapshot) and first.words
                speaker.audio(speech(1.0))
                speaker.send(wire.Eos())
                said = texts(speaker.rest()[0])
                rest, code, reason = early.rest()
                assert texts(got + rest) == said and (code, reason) == (1000, "done")
                assert texts([first, *late.rest()[0]]) == said
    kinds = {type(message) for message in got + rest}
    assert kinds <= {wire.Commit, wire.Partial, wire.Segment, wire.Done}


def test_what_readers_say_is_ignored_and_their_leaving_harms_nobody() -> None:
    with daemon() as running, running.connect() as speaker:
        ready = opened(speaker)
        url = watch_url(running, ready)
        with running.connect(url=url) as reader:
            reader.receive()
            reader.send(wire.Eos(), wire.Start())
            reader.audio(speech(1.0))
        speaker.audio(speech(1.0))
        speaker.send(wire.Eos())
        done = speaker.rest()[0][-1]
        assert isinstance(done, wire.Done) and done.samples == 16_000


def test_the_reader_s_key_opens_nothing_else() -> None:
    with daemon() as running, running.connect() as speaker:
        ready = opened(speaker)
        key = ready.watch.partition("key=")[2]
        with running.connect() as thief:
            thief.send(wire.Resume(session=ready.session, token=key))
            assert thief.rest()[2] == "unknown_session"
        for path in (f"{ready.session}.txt?token={key}", f"{ready.session}/watch?key=x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{running.http}/v1/sessions/{path}")
        url = watch_url(running, ready)
        with pytest.raises(InvalidStatus), running.connect(url=url[:-1]):
            pass


def read_all(url: str, into: list[str], joined: threading.Event) -> None:
    with urllib.request.urlopen(url, timeout=20) as answer:
        into.append(answer.headers["content-type"])
        into.append(answer.readline().decode())
        joined.set()
        into.extend(line.decode() for line in answer)


def test_server_sent_events_and_live_webvtt() -> None:
    with daemon() as running, running.connect() as speaker:
        ready = opened(speaker)
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            urllib.request.urlopen(running.http + ready.watch + "&format=zzz")
        assert "format can be vtt" in caught.value.read().decode()
        outputs: list[list[str]] = [[], []]
        threads = []
        for into, query in zip(outputs, ("", "&format=vtt"), strict=True):
            joined = threading.Event()
            url = running.http + ready.watch + query
            threads.append(threading.Thread(target=read_all, args=(url, into, joined)))
            threads[-1].start()
            assert joined.wait(20)
        speaker.audio(speech(1.0))
        speaker.send(wire.Eos())
        said = texts(speaker.rest()[0])
        for thread in threads:
            thread.join(20)
    events, vtt = outputs
    assert events[0].startswith("text/event-stream") and events[1] == "event: snapshot\n"
    bodies: list[Any] = [json.loads(line[6:]) for line in events if line.startswith("data: ")]
    assert "".join(b["text"] for b in bodies[:-1] if b["type"] == "commit") == said
    assert bodies[-1] == "done"
    assert vtt[:2] == ["text/vtt; charset=utf-8", "WEBVTT\n"]
    assert said.strip() in "".join(vtt) and "-->" in "".join(vtt)


def test_a_reader_who_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whisper_stream.server.stream.outbox.HIGH_WATER", 3)
    engine = ScriptedEngine(word_text=lambda job: " " + "x" * 400_000)
    with daemon(engine) as running, running.connect() as speaker:
        ready = opened(speaker)
        with running.connect(url=watch_url(running, ready), max_queue=1) as reader:
            reader.receive()
            speaker.audio(speech(20.0))
            speaker.send(wire.Eos())
            assert isinstance(speaker.rest()[0][-1], wire.Done)
            assert reader.rest()[1:] == (1013, "you read too slowly; join again")
