"""Lost connections and killed daemons: no word is missing and none comes twice."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from whisper_stream.server.engine import Session
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.errors import ErrorCode
from whisper_stream.streamer.config import StreamConfig

from ...helpers.server_rig import Daemon, Peer, ScriptedEngine, daemon, full_disk, speech

AUDIO = speech(6.3, seed=11)
LASTING = (wire.Commit, wire.Segment, wire.Flushed, wire.Done)


def lasting(messages: list[wire.ServerMessage]) -> list[wire.ServerMessage]:
    return [m for m in messages if isinstance(m, LASTING)]


def words(messages: list[wire.ServerMessage]) -> list[wire.Word]:
    return [word for m in messages if isinstance(m, wire.Commit) for word in m.words]


@contextmanager
def resumed(
    running: Daemon, ready: wire.Ready, seq: int
) -> Iterator[tuple[Peer, wire.Resumed | wire.Error]]:
    with running.connect() as peer:
        peer.send(wire.Resume(session=ready.session, token=ready.token, seq=seq))
        answer = peer.receive()
        assert isinstance(answer, (wire.Resumed, wire.Error))
        yield peer, answer


def opened(peer: Peer) -> wire.Ready:
    peer.send(wire.Start(resume=True))
    ready = peer.receive()
    assert isinstance(ready, wire.Ready) and ready.token and ready.resume_seconds == 60
    return ready


def undisturbed() -> list[wire.Word]:
    with daemon() as running, running.connect() as peer:
        peer.send(wire.Start())
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        return words(peer.rest()[0])


def get(running: Daemon, ready: wire.Ready, suffix: str, method: str = "GET") -> str:
    request = urllib.request.Request(
        f"{running.http}/v1/sessions/{ready.session}{suffix}",
        headers={"authorization": f"Bearer {ready.token}"},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        text: str = answer.read().decode()
    return text


def cut_off(peer: Peer) -> None:
    peer.socket.socket.shutdown(2)


@pytest.mark.parametrize("seed", range(5))
def test_dropped_connections_lose_and_double_nothing(seed: int) -> None:
    chance = random.Random(seed)
    got: list[wire.ServerMessage] = []
    with daemon() as running:
        with running.connect() as peer:
            ready = opened(peer)
            peer.audio(AUDIO[: chance.randrange(len(AUDIO))])
            got += [peer.receive() for _ in range(chance.randrange(6))]
            cut_off(peer)
        for last in (False, False, True):
            seq = max([m.seq for m in got], default=ready.seq)
            with resumed(running, ready, seq) as (peer, answer):
                assert isinstance(answer, wire.Resumed) and answer.seq == seq
                rest = AUDIO[answer.bytes :]
                if last:
                    peer.audio(rest)
                    peer.send(wire.Eos())
                    got += peer.rest()[0]
                else:
                    peer.audio(rest[: chance.randrange(len(rest) + 1)])
                    for _ in range(chance.randrange(4)):
                        peer.send(wire.Ping())
                        got.append(peer.receive())
                        peer.send(wire.Seen(seq=got[-1].seq))
                    cut_off(peer)
    assert words(got) == undisturbed()
    done = got[-1]
    assert isinstance(done, wire.Done) and done.samples == len(AUDIO) // 2
    numbers = [m.seq for m in lasting(got)]
    assert numbers == sorted(set(numbers))


def test_the_end_itself_can_be_fetched_again() -> None:
    with daemon() as running:
        with running.connect() as peer:
            ready = opened(peer)
            peer.audio(AUDIO)
            peer.send(wire.Eos())
            first = peer.rest()[0]
        with resumed(running, ready, ready.seq) as (peer, answer):
            assert isinstance(answer, wire.Resumed) and answer.controls == 1
            again, code, reason = peer.rest()
    assert lasting(again) == lasting(first) and (code, reason) == (1000, "done")


def test_only_the_right_token_resumes() -> None:
    with daemon() as running, running.connect() as peer:
        ready = opened(peer)
        answers = []
        for wrong in (
            wire.Resume(session=ready.session, token="x"),
            wire.Resume(session="nobody", token=ready.token),
        ):
            with running.connect() as other:
                other.send(wrong)
                messages, code, _ = other.rest()
                answers.append((messages, code))
        assert answers[0] == answers[1] and answers[0][1] == 1008
        error = answers[0][0][0]
        assert isinstance(error, wire.Error) and error.code == ErrorCode.UNKNOWN_SESSION
        peer.send(wire.Eos())
        assert isinstance(peer.rest()[0][-1], wire.Done)


def test_a_second_connection_takes_over() -> None:
    with daemon() as running, running.connect() as first:
        ready = opened(first)
        first.audio(AUDIO[:1001])
        first.until(wire.Ack)
        with resumed(running, ready, 0) as (second, answer):
            assert isinstance(answer, wire.Resumed) and answer.bytes == 1001
            messages, code, reason = first.rest()
            assert isinstance(messages[-1], wire.Error)
            assert (code, reason) == (1008, "taken_over")
            second.audio(AUDIO[1001:])
            second.send(wire.Eos())
            assert words(second.rest()[0]) == undisturbed()


def test_a_stream_that_nobody_resumes_is_completed_and_kept() -> None:
    with daemon(resume_seconds=0.05) as running:
        with running.connect() as peer:
            peer.send(wire.Start(resume=True))
            ready = peer.receive()
            assert isinstance(ready, wire.Ready)
            peer.audio(AUDIO[:32_000])
            ack = peer.until(wire.Ack)[-1]
            while isinstance(ack, wire.Ack) and ack.bytes < 32_000:
                ack = peer.until(wire.Ack)[-1]
            cut_off(peer)
        while not (found := json.loads(get(running, ready, ".json"))["segments"]):
            pass  # each look is a round trip
        assert [word["text"] for word in found[0]["words"]] == [w.text for w in undisturbed()[:2]]
        with resumed(running, ready, 0) as (_, answer):
            assert isinstance(answer, wire.Error)


def test_transcripts_over_http_need_the_token_and_can_be_deleted() -> None:
    with daemon() as running:
        with running.connect() as peer:
            ready = opened(peer)
            peer.audio(AUDIO)
            peer.send(wire.Eos())
            text = "".join(word.text for word in words(peer.rest()[0]))
        assert get(running, ready, ".txt") == text.strip() + "\n"
        assert get(running, ready, ".vtt").startswith("WEBVTT")
        assert "-->" in get(running, ready, ".srt")
        stranger = msgspec.structs.replace(ready, token="no")
        for who, suffix, method in (
            (stranger, ".txt", "GET"),
            (stranger, "", "DELETE"),
            (ready, ".exe", "GET"),
        ):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(running, who, suffix, method)
        get(running, ready, "", "DELETE")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(running, ready, ".txt")


def test_a_client_that_never_acknowledges_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whisper_stream.server.stream.outbox.MOST_KEPT", 4)
    engine = ScriptedEngine()
    with daemon(engine) as running, running.connect() as peer:
        opened(peer)
        # soft enough to raise no suspicion: a warning would be kept as well
        peer.audio((np.frombuffer(speech(20.0), "<i2") // 4).tobytes())
        got = [peer.receive()]
        while len(words(got)) < 4:
            got.append(peer.receive())
        for _ in range(100):  # round trips, in which a stream that did not wait would go on
            peer.send(wire.Ping())
            got += peer.until(wire.Pong)
        assert len(words(got)) == 4
        while not isinstance(got[-1], wire.Done):
            peer.send(wire.Seen(seq=got[-1].seq), wire.Ping())
            got += peer.until(wire.Pong)
            if len(words(got)) == 40:
                peer.send(wire.Eos())
                got += peer.rest()[0]
    assert len(words(got)) == 40


def test_a_stopped_daemon_hands_its_streams_to_the_next(tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal": str(tmp_path / "journal")}
    with daemon(**options) as first, first.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO[:100_001])
        got = peer.until(wire.Commit)
        first.stop()
        rest, code, reason = peer.rest()
        got += rest
        assert (code, reason) == (1012, "shutting_down")
        assert not any(isinstance(m, wire.Done) for m in got)
    with daemon(**options) as second:
        seq = max(m.seq for m in got)
        with resumed(second, ready, seq) as (peer, answer):
            assert isinstance(answer, wire.Resumed)
            peer.audio(AUDIO[answer.bytes :])
            peer.send(wire.Eos())
            got += peer.rest()[0]
    assert words(got) == undisturbed()
    with daemon(**options) as third:
        assert json.loads(get(third, ready, ".json"))["segments"]
    with daemon(model="other", **options, engine=ScriptedEngine(model_name="other")) as fourth:
        assert get(fourth, ready, ".txt")


def test_a_damaged_journal_ends_one_stream_and_not_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with daemon(journal=str(path)) as first, first.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO[:50_000])
        peer.until(wire.Commit)
        first.stop()
        peer.rest()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE commands SET body = x'c1' WHERE n = 1")
    database.close()
    with daemon(journal=str(path)) as second:
        with resumed(second, ready, 0) as (_, answer):
            assert isinstance(answer, wire.Error) and answer.code == ErrorCode.UNKNOWN_SESSION
        with second.connect() as peer:
            peer.send(wire.Start(), wire.Eos())
            assert isinstance(peer.rest()[0][-1], wire.Done)


def test_a_client_that_has_seen_more_than_the_journal_holds_begins_anew(tmp_path: Path) -> None:
    """The end of the journal was lost: its words would come twice, or never."""
    path = tmp_path / "journal"
    with daemon(journal=str(path)) as first, first.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO)
        peer.until(wire.Commit)
        last = peer.receive()
    with daemon(journal=str(path)) as second:
        with resumed(second, ready, last.seq) as (_, answer):
            assert isinstance(answer, wire.Resumed)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE streams SET sent = 0")
        database.execute("DELETE FROM commands WHERE n > 0")
        database.commit()
    with daemon(journal=str(path)) as third:
        with resumed(third, ready, last.seq) as (_, answer):
            assert isinstance(answer, wire.Error) and answer.code == ErrorCode.UNKNOWN_SESSION


def test_a_stream_too_long_for_the_journal_goes_on_without_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal": str(tmp_path / "journal"), "journal_limit": 0.1}
    with daemon(**options) as first, first.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        messages = peer.rest()[0]
        assert [m.code for m in messages if isinstance(m, wire.Warning)].count("journal_full") == 1
        assert words(messages) == undisturbed()
    with sqlite3.connect(tmp_path / "journal") as database:
        assert database.execute("SELECT count(*) FROM commands").fetchone() == (0,)
    database.close()
    with daemon(**options) as second, resumed(second, ready, 0) as (_, answer):
        assert isinstance(answer, wire.Error)


def test_a_full_disk_is_told_to_the_stream_and_the_daemon_lives(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with daemon(journal=str(path)) as running:
        with full_disk(path, "commands"), running.connect() as peer:
            peer.send(wire.Start(resume=True))
            peer.audio(AUDIO)
            messages, code, reason = peer.rest()
        assert (code, reason) == (1011, "journal_failed")
        error = messages[-1]
        assert isinstance(error, wire.Error) and "disk is full" in error.message
        with running.connect() as peer:
            peer.send(wire.Start(), wire.Eos())
            assert isinstance(peer.rest()[0][-1], wire.Done)


class LoopBound(ScriptedEngine):
    """An engine whose sessions may be made on the event loop only, as that of another process."""

    def new_session(self, config: StreamConfig) -> Session:
        asyncio.get_running_loop()
        return super().new_session(config)


def stopped(path: Path) -> tuple[wire.Ready, list[wire.ServerMessage]]:
    """A stream that a daemon has left in its journal, and all that its client has of it."""
    with daemon(journal=str(path)) as first, first.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO[:100_000])
        got = peer.until(wire.Commit)
        first.stop()
        return ready, got + peer.rest()[0]


def test_a_stream_is_brought_back_for_its_client_alone_and_on_the_loop(tmp_path: Path) -> None:
    ready, got = stopped(tmp_path / "journal")
    engine = LoopBound()
    with daemon(engine, journal=str(tmp_path / "journal"), debug=True) as second:
        with second.connect() as stranger:
            stranger.send(wire.Resume(session=ready.session, token="wrong"))
            assert isinstance(stranger.receive(), wire.Error)
        assert engine.sessions == []
        with resumed(second, ready, max(m.seq for m in got)) as (peer, answer):
            assert isinstance(answer, wire.Resumed)
            peer.audio(AUDIO[answer.bytes :])
            peer.send(wire.Eos())
            got += peer.rest()[0]
        shown = json.loads(
            urllib.request.urlopen(f"{second.http}/debug/streams/{ready.session}").read()
        )
    assert words(got) == undisturbed()
    texts = [word["text"] for word in shown["words"]]  # as far back as this daemon has heard audio
    assert texts and texts == [word.text for word in words(got)][-len(texts) :]


def test_a_stream_that_nobody_asks_for_is_completed(tmp_path: Path) -> None:
    ready, got = stopped(tmp_path / "journal")
    engine = LoopBound()
    with daemon(engine, journal=str(tmp_path / "journal"), resume_seconds=0.05) as second:
        while not (found := json.loads(get(second, ready, ".json"))["segments"]):
            pass  # each look is a round trip
        with resumed(second, ready, max(m.seq for m in got)) as (_, answer):
            assert isinstance(answer, wire.Error)
    said = [word["text"] for segment in found for word in segment["words"]]
    assert said[: len(words(got))] == [word.text for word in words(got)]
