"""Several processes hold the streams of one daemon: no client can tell, whichever it meets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from whisper_stream.clients.stream import StreamConnection, connect
from whisper_stream.server import wire
from whisper_stream.server.place import owner_of

from .ingress_rig import Running, running
from .server_rig import Peer, daemon, speech

COUNT = 3
AUDIO = speech(3.2, seed=5)
OFTEN = (
    12  # connections to unknown processes: that all meet the same one of three, nobody lives to see
)
KEYS = (
    "one:0123456789abcdef streams=2\ntwo:fedcba9876543210 minutes=0.1\ndebug:00112233445566778899\n"
)


def words(messages: list[wire.ServerMessage]) -> list[wire.Word]:
    return [word for m in messages if isinstance(m, wire.Commit) for word in m.words]


def opened(peer: Peer, **options: object) -> wire.Ready:
    peer.send(wire.Start(resume=True, **options))  # type: ignore[arg-type]
    ready = peer.receive()
    assert isinstance(ready, wire.Ready), ready
    return ready


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(url: str, name: str, **headers: str) -> float:
    lines = get(f"{url}/metrics", **headers)[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@contextmanager
def resumed(there: Running, ready: wire.Ready, seq: int) -> Iterator[tuple[Peer, wire.Resumed]]:
    with there.connect() as peer:
        peer.send(wire.Resume(session=ready.session, token=ready.token, seq=seq))
        answer = peer.receive()
        assert isinstance(answer, wire.Resumed), answer
        yield peer, answer


def undisturbed() -> list[wire.Word]:
    with daemon() as alone, alone.connect() as peer:
        opened(peer)
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        return words(peer.rest()[0])


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
        assert metric(there.http, "whisper_stream_audio_seconds_total") == before + OFTEN
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


def test_a_killed_process_costs_no_word_and_no_other_stream(tmp_path: Path) -> None:
    expected = undisturbed()
    half = len(AUDIO) // 4 * 2
    with running("--ingress", str(COUNT), "--journal", str(tmp_path / "journal")) as there:
        with ExitStack() as stack:
            peers = [stack.enter_context(there.connect()) for _ in range(OFTEN)]
            readies = [opened(peer) for peer in peers]
            got: list[list[wire.ServerMessage]] = []
            for peer in peers:
                peer.audio(AUDIO[:half])
                got.append(peer.until(wire.Commit))
            opened_before = metric(there.http, "whisper_stream_streams_opened_total")
            os.kill(there.children()[0], signal.SIGKILL)
            lost = []
            for at, peer in enumerate(peers):
                try:
                    peer.send(wire.Ping(id="still there?"))
                    got[at] += peer.until(wire.Pong)
                except ConnectionClosed:
                    lost.append(at)
            owners = {owner_of(readies[at].session, COUNT) for at in lost}
            assert len(owners) <= 1 and len(lost) < OFTEN
            for at, peer in enumerate(peers):
                if at in lost:
                    peer = stack.enter_context(_resumed_soon(there, readies[at], got[at]))
                peer.audio(AUDIO[_held(got[at], half) :])
                peer.send(wire.Eos())
                messages, code, reason = peer.rest()
                assert (code, reason) == (1000, "done")
                seen = {m.seq: m for m in [*got[at], *messages] if isinstance(m, wire.Commit)}
                assert words([seen[seq] for seq in sorted(seen)]) == expected
        until(lambda: metric(there.http, "whisper_stream_streams") == 0)
        assert metric(there.http, "whisper_stream_streams_opened_total") <= opened_before
        code, log = there.stop()
    assert code == 0 and log.count("event=ingress_ended") == 1
    assert all(word.text.strip() not in log for word in expected)
    assert log.count("event=stream_restored") == len(lost)
    assert log.count(" ERROR ") == 1


def _held(got: list[wire.ServerMessage], sent: int) -> int:
    """Where to go on: what ``resumed`` said the daemon has; all that was sent, if nothing was lost."""
    return next((m.bytes for m in reversed(got) if isinstance(m, wire.Resumed)), sent)


@contextmanager
def _resumed_soon(
    there: Running, ready: wire.Ready, got: list[wire.ServerMessage]
) -> Iterator[Peer]:
    """Resume once the daemon lets us in: the process may be being started again."""
    seq = got[-1].seq
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            with resumed(there, ready, seq) as (peer, answer):
                got.append(answer)
                yield peer
                return
        except (ConnectionClosed, InvalidHandshake, OSError):
            time.sleep(0.05)
    raise AssertionError("the stream could not be resumed")


@pytest.mark.parametrize("after", [0, 2])
def test_streams_outlive_the_daemon_whatever_number_of_processes(
    tmp_path: Path, after: int
) -> None:
    journal = ["--journal", str(tmp_path / "journal")]
    half = len(AUDIO) // 4 * 2
    readies = []
    with running("--ingress", str(COUNT), *journal) as there:
        for _ in range(6):
            with there.connect() as peer:
                readies.append(opened(peer))
                peer.audio(AUDIO[:half])
                peer.until(wire.Commit)
        children = there.children()
        there.process.kill()
        there.process.wait()
        until(lambda: all(gone(pid) for pid in children))
    expected = undisturbed()
    with running(*(["--ingress", str(after)] if after else []), *journal) as there:
        for ready in readies:
            with resumed(there, ready, 1) as (peer, answer):
                peer.audio(AUDIO[answer.bytes :])
                peer.send(wire.Eos())
                messages, code, _ = peer.rest()
                assert code == 1000 and words(messages) == expected
        code, log = there.stop()
    assert code == 0 and "ERROR" not in log


@pytest.mark.parametrize(
    ("number", "all_are_told"),
    [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, False)],
)
def test_a_signal_lets_all_streams_finish(number: signal.Signals, all_are_told: bool) -> None:
    with running("--ingress", "2") as there, ExitStack() as stack:
        peers = [stack.enter_context(there.connect()) for _ in range(6)]
        for peer in peers:
            opened(peer)
            peer.audio(AUDIO)
            peer.until(wire.Commit)
        children = there.children()
        for pid in children if all_are_told else ():  # as systemd does
            os.kill(pid, number)
        there.process.send_signal(number)
        for peer in peers:
            messages, code, reason = peer.rest()
            assert isinstance(messages[-1], wire.Done)
            assert (code, reason) == (1012, "shutting_down")
        _, log = there.process.communicate(timeout=30)
    assert there.process.returncode == 0 and all(gone(pid) for pid in children)
    assert "event=stopped" in log.splitlines()[-1] and "error" not in log.lower()


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


SPEAKERS = 6
PIECES = 16  # of the audio, each a fifth of a second


class Speakers:
    """Clients that each speak half, wait to be told to go on, and then say the rest."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.halfway = threading.Barrier(SPEAKERS + 1)
        self.go_on = threading.Event()
        self._pool = ThreadPoolExecutor(SPEAKERS)
        self._said = [self._pool.submit(self._run, url, key) for _ in range(SPEAKERS)]

    def words(self) -> list[list[wire.Word]]:
        self.go_on.set()
        try:
            return [each.result(60) for each in self._said]
        finally:
            self._pool.shutdown()

    def _run(self, url: str, key: str | None) -> list[wire.Word]:
        return asyncio.run(self._speak(url, key))

    async def _speak(self, url: str, key: str | None) -> list[wire.Word]:
        async with connect(url, wire.Start(), key=key) as stream:
            talking = asyncio.create_task(self._talk(stream))
            got = [message async for message in stream]
            await talking
        return words(got)

    async def _talk(self, stream: StreamConnection) -> None:
        step = len(AUDIO) // PIECES // 2 * 2
        for at in range(0, len(AUDIO), step):
            if at == PIECES // 2 * step:
                await asyncio.to_thread(self.halfway.wait, 30)
                await asyncio.to_thread(self.go_on.wait, 30)
            await stream.send_audio(AUDIO[at : at + step])
        await stream.eos()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("resting", [True, False])
def test_clients_of_a_process_that_ends_lose_no_word(
    tmp_path: Path, number: signal.Signals, resting: bool
) -> None:
    """``resting``: it hangs first, so that its clients' resumes wait for it."""
    with running("--ingress", "2", "--journal", str(tmp_path / "journal")) as there:
        speakers = Speakers(there.url)
        speakers.halfway.wait(30)
        victim = there.children()[0]
        if resting:
            os.kill(victim, signal.SIGSTOP)
        os.kill(victim, number)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
        said = speakers.words()
        code, log = there.stop()
    assert said == [undisturbed()] * SPEAKERS
    assert code == 0 and "event=stream_failed" not in log


def test_a_daemon_stopped_and_started_again_loses_no_word(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEYS.replace("streams=2", f"streams={SPEAKERS}"))
    flags = ["--ingress", "2", "--journal", str(tmp_path / "journal"), "--api-keys", str(keys)]
    flags += ["--max-load", "0"]
    with running(*flags) as there:
        speakers = Speakers(there.url, "0123456789abcdef")
        speakers.halfway.wait(30)
        speakers.go_on.set()
        code, log = there.stop()
    assert code == 0 and "ERROR" not in log
    with running(*flags, "--port", str(there.port)) as again:
        said = speakers.words()
        code, log = again.stop()
    assert said == [undisturbed()] * SPEAKERS
    assert code == 0 and "ERROR" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_does_not_wait_for_a_process_that_is_gone(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A client's resume waits for a process being started again, when the daemon is stopped."""
    with running("--ingress", "2", "--journal", str(tmp_path / "journal")) as there:
        with ExitStack() as stack:
            readies = [opened(stack.enter_context(there.connect())) for _ in range(OFTEN)]
            owners = [owner_of(ready.session, 2) for ready in readies]
        victim = there.children()[0]
        os.kill(victim, signal.SIGSTOP)
        peers = []
        with ExitStack() as stack:
            for ready in readies[: OFTEN // 2]:
                with suppress(TimeoutError, InvalidHandshake):
                    peer = stack.enter_context(there.connect(open_timeout=1.0))
                    peer.send(wire.Resume(session=ready.session, token=ready.token, seq=1))
                    peers.append(peer)
            there.process.send_signal(signal.SIGTERM)
            os.kill(victim, number)
            for peer in peers:
                messages, code, _ = peer.rest()
                assert code == 1012
                assert not any(isinstance(message, wire.Error) for message in messages)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
        _, log = there.process.communicate(timeout=30)
    assert set(owners) == {0, 1} and peers
    assert there.process.returncode == 0 and "event=stream_failed" not in log
