"""Processes of one daemon end, killed or told to, or the daemon with them: no stream loses a word."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from whisper_stream.clients.sdk.connection import ReconnectingStream, connect
from whisper_stream.server.cluster.topology import owner_of
from whisper_stream.server.protocol import messages as wire

from ...helpers.ingress_clients import (
    AUDIO,
    COUNT,
    KEYS,
    OFTEN,
    gone,
    metric,
    opened,
    resumed,
    undisturbed,
    until,
    words,
)
from ...helpers.ingress_rig import Running, running
from ...helpers.server_rig import Peer

pytestmark = pytest.mark.needs("procfs")
SPEAKERS = 6
PIECES = 16  # of the audio, each a fifth of a second


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

    async def _talk(self, stream: ReconnectingStream) -> None:
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
