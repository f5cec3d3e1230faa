"""Several processes hold the streams of one daemon: no client can tell, whichever it meets."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from whisper_stream.server.cluster.topology import owner_of
from whisper_stream.server.protocol import messages as wire

from ...helpers.ingress_clients import (
    AUDIO,
    COUNT,
    KEYS,
    OFTEN,
    get,
    metric,
    opened,
    resumed,
    undisturbed,
    until,
    words,
)
from ...helpers.ingress_rig import Running, running
from ...helpers.server_rig import speech


@pytest.fixture(scope="module")
def there() -> Iterator[Running]:
    with running("--ingress", str(COUNT), "--debug") as started:
        yield started


@pytest.mark.parametrize("subprotocol", [*wire.SUBPROTOCOLS, None])
def test_a_stream_says_what_it_would_say_in_one_process(
    there: Running, subprotocol: str | None
) -> None:
    with there.connect(subprotocol) as peer:
        opened(peer)
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        messages, code, reason = peer.rest()
    assert (code, reason) == (1000, "done") and words(messages) == undisturbed()


def test_streams_are_spread_and_their_ids_tell_where(there: Running) -> None:
    with ExitStack() as stack:
        readies = [opened(stack.enter_context(there.connect())) for _ in range(OFTEN)]
        met = Counter(owner_of(ready.session, COUNT) for ready in readies)
        assert len(met) > 1 and set(met) <= set(range(COUNT))
        assert len({ready.session for ready in readies}) == OFTEN
        assert metric(there.http, "whisper_stream_streams") >= OFTEN
        assert json.loads(get(f"{there.http}/healthz")[1])["streams"] >= OFTEN


@pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)
def test_a_stream_is_resumed_through_any_process(there: Running, subprotocol: str) -> None:
    step = len(AUDIO) // OFTEN // 2 * 2
    got: list[wire.ServerMessage] = []
    with there.connect(subprotocol) as peer:
        ready = opened(peer)
        peer.socket.socket.shutdown(2)
    for turn in range(OFTEN):
        seq = max((message.seq for message in got), default=1)
        with there.connect(subprotocol) as peer:
            peer.send(wire.Resume(session=ready.session, token=ready.token, seq=seq))
            answer = peer.receive()
            assert isinstance(answer, wire.Resumed) and answer.bytes == turn * step
            last = turn == OFTEN - 1
            peer.audio(AUDIO[turn * step :] if last else AUDIO[turn * step : (turn + 1) * step])
            if last:
                peer.send(wire.Eos())
                messages, code, reason = peer.rest()
                assert (code, reason) == (1000, "done")
                got += messages
            else:
                peer.send(wire.Ping(id="here"))
                got += peer.until(wire.Pong)
                peer.socket.socket.shutdown(2)
    seen = {message.seq: message for message in got}
    assert words([seen[seq] for seq in sorted(seen)]) == undisturbed()


def test_a_wrong_token_is_refused_by_any_process(there: Running) -> None:
    with there.connect() as speaker:
        ready = opened(speaker)
        for _ in range(OFTEN):
            with there.connect() as peer:
                peer.send(wire.Resume(session=ready.session, token="wrong", seq=0))
                (error,), code, reason = peer.rest()
                assert isinstance(error, wire.Error) and error.code == "unknown_session"
                assert (code, reason) == (1008, "unknown_session")


def test_another_connection_takes_over_through_any_process(there: Running) -> None:
    with ExitStack() as stack:
        holder = stack.enter_context(there.connect())
        ready = opened(holder)
        for _ in range(OFTEN):
            peer, _ = stack.enter_context(resumed(there, ready, 1))
            messages, code, reason = holder.rest()
            assert isinstance(messages[-1], wire.Error) and messages[-1].code == "taken_over"
            assert (code, reason) == (1008, "taken_over")
            holder = peer
        # whoever passed it on counts it, and nobody else
        until(lambda: metric(there.http, "whisper_stream_connections") == 1)


def test_transcripts_are_fetched_and_deleted_through_any_process(there: Running) -> None:
    with there.connect() as peer:
        ready = opened(peer)
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        said = "".join(word.text for word in words(peer.rest()[0])).strip()
    url = f"{there.http}/v1/sessions/{ready.session}"
    for _ in range(OFTEN):
        assert get(f"{url}.txt", authorization=f"Bearer {ready.token}") == (200, said + "\n")
        assert get(f"{url}.json?token=wrong")[0] == 404
    assert get(url, "DELETE", authorization=f"Bearer {ready.token}")[0] == 204
    for _ in range(OFTEN):
        assert get(f"{url}.txt", authorization=f"Bearer {ready.token}")[0] == 404


def test_readers_join_through_any_process(there: Running) -> None:
    with there.connect() as speaker, ExitStack() as stack:
        ready = opened(speaker)
        url = f"ws://127.0.0.1:{there.port}{ready.watch}"
        readers = [stack.enter_context(there.connect(url=url)) for _ in range(OFTEN // 2)]
        assert {type(reader.receive()) for reader in readers} == {wire.Snapshot}
        request = urllib.request.Request(f"{there.http}{ready.watch}")
        events = [stack.enter_context(urllib.request.urlopen(request, timeout=20)) for _ in "1234"]
        speaker.audio(AUDIO)
        speaker.send(wire.Eos())
        said = words(speaker.rest()[0])
        for reader in readers:
            messages, code, reason = reader.rest()
            assert words(messages) == said and (code, reason) == (1000, "done")
        for answer in events:
            assert answer.headers["content-type"].startswith("text/event-stream")
            text = answer.read().decode()
            assert all(word.text.strip() in text for word in said) and "event: end" in text
    for _ in range(OFTEN):
        wrong = f"ws://127.0.0.1:{there.port}/v1/sessions/{ready.session}/watch?key=wrong"
        with pytest.raises(InvalidStatus) as refused, there.connect(url=wrong):
            pass
        assert refused.value.response.status_code == 404


def test_debug_shows_the_streams_of_all_processes(there: Running) -> None:
    with ExitStack() as stack:
        readies = [opened(stack.enter_context(there.connect())) for _ in range(6)]
        for _ in range(6):
            status, body = get(f"{there.http}/debug/streams")
            assert status == 200
            assert {r.session for r in readies} <= {row["id"] for row in json.loads(body)}
            status, body = get(f"{there.http}/debug/streams/{readies[0].session}")
            assert status == 200 and json.loads(body)["id"] == readies[0].session
        status, _ = get(f"{there.http}/debug/streams", host="elsewhere.example")
        assert status == 403


def test_figures_are_those_of_the_whole_daemon(there: Running) -> None:
    before = metric(there.http, "whisper_stream_audio_seconds_total")
    for seed in range(OFTEN):
        with there.connect() as peer:
            opened(peer)
            peer.audio(speech(1.0, seed))
            peer.send(wire.Eos())
            peer.rest()
    for _ in range(OFTEN):  # whoever is asked
        after = metric(there.http, "whisper_stream_audio_seconds_total")
        assert after == pytest.approx(before + OFTEN)
    health = json.loads(get(f"{there.http}/healthz")[1])
    assert health["processes"] == COUNT and health["status"] == "ok"
    assert health["cpu_seconds"] > 0 and health["memory_bytes"] > COUNT * 10_000_000
    assert get(f"{there.http}/readyz") == (200, "ready\n")


def test_limits_are_those_of_the_whole_daemon(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    flags = ["--ingress", str(COUNT), "--api-keys", str(keys), "--max-streams", "5"]
    flags += ["--resume-seconds", "0"]
    with running(*flags) as there:
        for _ in range(4):
            with pytest.raises(InvalidStatus), there.connect():
                pass
        one, two, debug = (
            {"x-api-key": line.split()[0].split(":")[1]} for line in KEYS.split("\n")[:3]
        )
        with ExitStack() as stack:
            for _ in range(2):
                peer = stack.enter_context(there.connect(additional_headers=one))
                ready = opened(peer)
            for _ in range(OFTEN):
                with there.connect(additional_headers=one) as peer:
                    peer.send(wire.Start())
                    assert peer.rest()[1:] == (1013, "limit_reached")
            for _ in range(3):
                opened(stack.enter_context(there.connect(additional_headers=debug)))
            for _ in range(OFTEN):
                with there.connect(additional_headers=debug) as peer:
                    peer.send(wire.Start())
                    assert peer.rest()[1:] == (1013, "too_many_streams")
            assert ready.session
        until(lambda: metric(there.http, "whisper_stream_connections", **debug) == 0)
        spent = 0
        for _ in range(OFTEN):  # six seconds a day
            with there.connect(additional_headers=two) as peer:
                opened(peer)
                peer.audio(speech(1.0))
                with suppress(ConnectionClosed):  # it may be closed before all is said
                    peer.send(wire.Eos())
                spent += peer.rest()[2] == "done"
        assert spent == 6
        keys.write_text("new:aaaabbbbccccddddeeee\n")
        there.process.send_signal(signal.SIGHUP)
        new = {"x-api-key": "aaaabbbbccccddddeeee"}
        until(lambda: all(get(f"{there.http}/metrics", **new)[0] == 200 for _ in range(OFTEN)))
        code, log = there.stop()
    assert code == 0 and log.count("event=reloaded") == COUNT
    assert not any(line.split()[0].split(":")[1] in log for line in KEYS.split("\n")[:3])


def test_tls_and_an_address_that_is_taken() -> None:
    import ssl

    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    with running("--ingress", "2", "--self-signed") as there:
        assert there.url.startswith("wss://")
        with there.connect(ssl=careless) as peer:
            ready = opened(peer)
        for _ in range(OFTEN // 2):
            with there.connect(ssl=careless) as peer:
                peer.send(wire.Resume(session=ready.session, token=ready.token, seq=1))
                assert isinstance(peer.receive(), wire.Resumed)
        for flags in ([], ["--ingress", "2"]):
            with pytest.raises(AssertionError, match="cannot listen"):
                with running(*flags, "--port", str(there.port)):
                    pass
