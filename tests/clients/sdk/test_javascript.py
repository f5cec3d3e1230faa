"""The JavaScript client in Node: what it sends, what it tells, and what a lost connection costs."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from whisper_stream.server.protocol import captions
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.jobs import DecodeJob

from ...helpers.fake_server import WORDS, Peer, fake_server, segment, talk
from ...helpers.fake_server import word as fake_word
from ...helpers.relay import relay
from ...helpers.server_rig import STEP, ScriptedEngine, daemon

pytestmark = pytest.mark.needs("node")
TESTS = Path(__file__).parents[2]
Event = dict[str, Any]
RATE = 16_000


def level_word(job: DecodeJob) -> str:
    """A word that says which half second of a script was heard."""
    return f" w{round(float(np.median(job.audio)) * 32_768) // 100}"


class Driver:
    """The client in a process of Node, and everything that it has told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.events: list[Event] = []

    def order(self, order: str, **values: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": order, **values}) + "\n")
        self._process.stdin.flush()

    def until(self, found: Callable[[Event], bool]) -> Event:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))
            if found(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"Node ended: {self.events[-5:]}")

    def until_type(self, *kinds: str) -> Event:
        return self.until(lambda event: event["type"] in kinds)

    def send(self, first: int, last: int) -> None:
        """Send half seconds of audio, numbers ``first`` to before ``last``."""
        self.order("send", levels=[100 * number for number in range(first, last)], each=STEP)
        self.until_type("sent")

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    def words(self) -> list[Event]:
        return [word for commit in self.of("commit") for word in commit["words"]]


@contextmanager
def driver() -> Iterator[Driver]:
    command = ["node", str(TESTS / "javascript" / "drive.mjs")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Driver(process)
        finally:
            process.kill()


def engine() -> ScriptedEngine:
    return ScriptedEngine(word_text=level_word)


def check(words: list[Event], count: int) -> None:
    """Every half second once, in order, at its time."""
    assert [word["text"] for word in words] == [f" w{number}" for number in range(1, count + 1)]
    for number, word in enumerate(words):
        assert word["start"] == pytest.approx(number * 0.5, abs=0.002)
        assert word["end"] == pytest.approx(number * 0.5 + 0.5, abs=0.002)


def test_a_whole_stream() -> None:
    with daemon(engine()) as running, driver() as node:
        node.order("connect", url=f"{running.http}/", options={"language": "de"})
        assert node.until_type("ready")["language"] == "de"
        node.send(1, 5)
        node.order("flush")
        node.until_type("flushed")
        check(node.words(), 4)
        node.send(5, 7)
        node.order("close")
        end = node.until_type("end")
    check(node.words(), 6)
    assert [event["with"] for event in node.of("answer")] == ["flushed", "done"]
    (done,) = node.of("done")
    assert (done["samples"], done["words"], done["duration"]) == (6 * STEP, 6, 3.0)
    assert (end["state"], end["pending"]) == ("closed", 0)
    (segment,) = node.of("segment")
    assert segment["words"] == node.words()


def test_options_reach_the_server() -> None:
    options = {"sampleRate": 48_000, "channels": 2, "encoding": "f32le", "prompt": "Names"}
    with fake_server() as server, driver() as node:
        node.order("connect", url=server.url, options={**options, "endpointSilence": 1.5})
        node.until_type("ready")
        node.order("close")
        node.until_type("end")
        start = server.peers[0].received[0]
    assert server.paths == [wire.STREAM_PATH]
    assert isinstance(start, wire.Start)
    assert (start.encoding, start.sample_rate, start.channels) == ("f32le", 48_000, 2)
    assert (start.prompt, start.endpoint_silence, start.language) == ("Names", 1.5, None)


def test_a_restarted_daemon_costs_no_word() -> None:
    """Killed in the middle; the next one knows nothing of the stream."""
    with daemon(engine()) as first, daemon(engine()) as second, relay(first.port) as between:
        with driver() as node:
            node.order("connect", url=f"ws://127.0.0.1:{between.port}", options={})
            node.send(1, 8)
            node.until(lambda event: event["type"] == "commit" and event["text"] == " w4")
            between.cut()
            node.until_type("reconnecting")
            node.send(8, 10)  # nobody hears this yet
            between.cut(second.port)
            resumed = node.until_type("resumed")
            node.send(10, 13)
            node.order("flush")
            node.until_type("flushed")
            between.cut(second.port)
            node.until_type("resumed")
            node.order("close")
            node.until_type("end")
    assert resumed["replayed"] == pytest.approx(9 * 0.5, abs=0.001)
    check(node.words(), 12)
    (segment,) = node.of("segment")
    assert segment["words"] == node.words()
    (done,) = node.of("done")
    assert (done["samples"], done["words"]) == (12 * STEP, 12)


def test_a_daemon_that_stops_politely_is_followed_by_the_next() -> None:
    with daemon(engine()) as first, daemon(engine()) as second, relay(first.port) as between:
        with driver() as node:
            node.order("connect", url=f"ws://127.0.0.1:{between.port}", options={})
            node.send(1, 5)
            between.target = second.port
            node.until(lambda event: event["type"] == "commit" and event["text"] == " w4")
            first.stop()
            node.until_type("segment")
            node.until_type("resumed")
            node.send(5, 8)
            node.order("close")
            node.until_type("end")
    check(node.words(), 7)
    assert [segment["id"] for segment in node.of("segment")] == [1, 2]
    assert [(s["start"], s["end"]) for s in node.of("segment")] == [(0.0, 2.0), (2.0, 3.5)]
    (done,) = node.of("done")
    assert (done["samples"], done["words"], done["duration"]) == (7 * STEP, 7, 3.5)


def test_a_connection_lost_before_ready_is_made_again() -> None:
    left = [2]

    async def script(peer: Peer) -> None:
        if left[0]:
            left[0] -= 1
            await peer.receive()
            peer.socket.transport.abort()
            return
        await talk(peer)

    with fake_server(script) as server, driver() as node:
        node.order("connect", url=server.url, options={})
        assert node.until_type("ready")["session"] == "s"
        node.order("send", levels=[7], each=8_000)
        node.order("close")
        node.until_type("end")
        audio = bytes(server.peers[-1].audio)
    assert [event["attempt"] for event in node.of("reconnecting")] == [1, 2]
    assert len(server.peers) == 3 and not node.of("resumed")
    assert len(node.words()) == len(WORDS)
    assert audio == np.full(8_000, 7, "<i2").tobytes()


def test_a_server_that_never_gets_ready_is_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        peer.socket.transport.abort()

    with fake_server(script) as server, driver() as node:
        node.order("connect", url=server.url, options={"giveUpAfter": 0.6})
        assert node.until_type("thrown")["code"] == "lost"
        assert len(server.peers) >= 2


def test_what_cannot_be_opened_is_said() -> None:
    with relay(None) as nobody, driver() as node:
        node.order("connect", url=f"ws://127.0.0.1:{nobody.port}", options={})
        assert node.until_type("thrown")["code"] == "unreachable"
        node.order("connect", url="ftp://127.0.0.1", options={})
        assert node.until_type("thrown")["code"] == "invalid_url"


@pytest.mark.parametrize(
    ("status", "code"), [(401, "refused"), (403, "refused"), (503, "stopping")]
)
def test_a_refused_handshake_is_explained(status: int, code: str) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "whisper-stream.key.sesame" in self.headers["Sec-WebSocket-Protocol"]
            self.send_error(status)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server, driver() as node:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"ws://127.0.0.1:{server.server_port}"
        node.order("connect", url=url, options={"key": "sesame"})
        assert node.until_type("thrown")["code"] == code
        server.shutdown()


def test_refusals_carry_the_servers_words() -> None:
    with daemon(engine(), max_streams=1) as running, driver() as node, running.connect() as taken:
        taken.send(wire.Start())
        taken.until(wire.Ready)
        node.order("connect", url=running.url, options={})
        full = node.until_type("thrown")
        assert (full["name"], full["code"]) == ("StreamError", "too_many_streams")
        assert "the only stream is taken" in full["message"]
    with daemon(engine()) as running, driver() as node:
        node.order("connect", url=running.url, options={"channels": 7})
        wrong = node.until_type("thrown")
        assert (wrong["code"], wrong["field"]) == ("invalid_field", "channels")


def test_giving_up_is_an_error_and_leaving_is_none() -> None:
    with daemon(engine()) as running, relay(running.port) as between, driver() as node:
        url = f"ws://127.0.0.1:{between.port}"
        node.order("connect", url=url, options={"giveUpAfter": 0})
        node.until_type("ready")
        between.cut()
        assert node.until_type("thrown")["code"] == "lost"
        between.cut(running.port)
        node.order("connect", url=url, options={})
        node.until_type("ready")
        node.order("abort")
        assert node.until_type("end")["state"] == "closed"


def test_long_frames_arrive_whole() -> None:
    long = " " + "ö" * 70_000

    async def script(peer: Peer) -> None:
        await peer.ready()
        word = wire.Word(text=long, start=0.0, end=1.0, probability=0.5)
        await peer.send(wire.Commit(text=long, words=(word,)))
        await peer.until_eos()
        await peer.done()

    with fake_server(script) as server, driver() as node:
        node.order("connect", url=server.url, options={})
        assert node.until_type("commit")["text"] == long
        node.order("send", levels=[7], each=200_000)
        node.order("close")
        node.until_type("end")
        audio = bytes(server.peers[0].audio)
    assert audio == np.full(200_000, 7, "<i2").tobytes()


def test_subtitles_are_those_of_the_server() -> None:
    """The page saves with captions.js what ``--output`` writes with captions.py."""
    texts = "it's 𝒜 long & <winding> road --> to nowhere, as they said;\tlook: " + "x" * 100
    words = [
        fake_word(f" {text}" if number % 7 else text, number * 0.37, number * 0.37 + 0.31)
        for number, text in enumerate([*texts.split(" "), *"one two three four five".split() * 9])
    ]
    segments = [segment(1, tuple(words[:30])), segment(2, tuple(words[30:]))]
    script = (
        "import { FORMATS } from './clients/browser/captions.js';"
        "const segments = JSON.parse(process.argv[1]);"
        "const made = Object.entries(FORMATS).map(([name, { render }]) => [name, render(segments)]);"
        "process.stdout.write(JSON.stringify(Object.fromEntries(made)));"
    )
    command = ["node", "--input-type=module", "-e", script, msgspec.json.encode(segments).decode()]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, check=True)
    made = json.loads(done.stdout)
    assert made == {
        "txt": captions.render(segments, "txt"),
        "srt": captions.render(segments, "srt"),
        "vtt": captions.render(segments, "vtt"),
    }
