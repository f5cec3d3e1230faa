"""Several engine processes behind one daemon: what they say, and what a stream notices when one ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from whisper_stream.server.protocol import messages as wire

from ...helpers.ingress_clients import get, gone, metric, opened, until, words
from ...helpers.ingress_rig import BROKEN, FATAL_MARK, LOST_MARK, ROOT, Running, running
from ...helpers.server_rig import Peer, daemon, speech

pytestmark = pytest.mark.needs("procfs")
AUDIO = speech(3.2, seed=5)
STEP_BYTES = 2 * 8_000  # of audio that the scripted session has decoded at once
JFK = (
    "and so my fellow americans ask not what your country can do for you "
    "ask what you can do for your country"
)
FATAL = np.full(8_000, FATAL_MARK * 32_768, "<i2").tobytes()
LOST = np.full(8_000, LOST_MARK * 32_768, "<i2").tobytes()


def engines(there: Running) -> list[int]:
    """Process ids of the daemon's engines."""
    return [pid for pid in there.children() if b"engine" in _command(pid)]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def said(peer: Peer, audio: bytes) -> list[wire.Word]:
    peer.audio(audio)
    peer.send(wire.Eos())
    messages, code, reason = peer.rest()
    assert (code, reason) == (1000, "done")
    return words(messages)


def undisturbed() -> list[wire.Word]:
    with daemon() as alone, alone.connect() as peer:
        opened(peer)
        return said(peer, AUDIO)


@pytest.mark.parametrize("ingress", ["0", "2"])
def test_a_stream_says_what_it_would_say_of_one_engine(ingress: str) -> None:
    expected = undisturbed()
    with running("--engines", "2", "--ingress", ingress) as there:
        assert len(engines(there)) == 2
        for _ in range(4):
            with there.connect() as peer:
                opened(peer)
                assert said(peer, AUDIO) == expected
        until(lambda: metric(there.http, "whisper_stream_engine_done") >= 4 * len(expected))
        health = json.loads(get(f"{there.http}/healthz")[1])
        ours = sum(_resident(pid) for pid in [there.process.pid, *there.children()])
        assert 0.8 * ours < health["memory_bytes"] < 1.25 * ours
        children = there.children()
        code, log = there.stop()
    assert code == 0 and "ERROR" not in log
    assert all(gone(pid) for pid in children)


def _resident(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@pytest.mark.parametrize("ingress", ["0", "2"])
def test_an_engine_that_is_killed_costs_nobody_a_word(ingress: str) -> None:
    expected = undisturbed()
    with running("--engines", "2", "--ingress", ingress) as there, ExitStack() as stack:
        peers = [stack.enter_context(there.connect()) for _ in range(6)]
        for peer in peers:
            opened(peer)
            peer.audio(AUDIO[: len(AUDIO) // 4 * 2])
        before = engines(there)
        os.kill(before[0], signal.SIGKILL)
        rest = AUDIO[len(AUDIO) // 4 * 2 :]
        assert [said(peer, rest) for peer in peers] == [expected] * 6
        until(lambda: len(engines(there)) == 2 and before[0] not in engines(there))
        code, log = there.stop()
    assert code == 0 and log.count("event=engine_ended number=0 code=-9") == 1
    assert all(word.text.strip() not in log for word in expected)


def test_jobs_wait_while_no_engine_is_there() -> None:
    expected = undisturbed()
    with running("--engines", "2") as there, there.connect() as peer:
        opened(peer)
        assert get(f"{there.http}/readyz")[0] == 200
        for pid in engines(there):
            os.kill(pid, signal.SIGKILL)
        until(lambda: metric(there.http, "whisper_stream_engine_processes") == 0)
        status, sentence = get(f"{there.http}/readyz")
        assert (status, sentence) == (
            503,
            "no engine process is there; the next one is being started\n",
        )
        assert said(peer, AUDIO) == expected
        assert metric(there.http, "whisper_stream_engine_processes") >= 1


def test_audio_that_ends_every_engine_is_given_up_and_its_stream_is_told() -> None:
    expected = undisturbed()
    with running("--engines", "2") as there, there.connect() as poison, there.connect() as healthy:
        opened(healthy)
        opened(poison)
        poison.audio(FATAL)
        gap = poison.until(wire.Gap)[-1]
        assert isinstance(gap, wire.Gap) and gap.end == pytest.approx(0.5)
        assert said(healthy, AUDIO) == expected
        assert said(poison, AUDIO[:STEP_BYTES])
        assert get(f"{there.http}/readyz")[0] == 200
        code, log = there.stop()
    assert code == 0 and log.count("event=engine_ended") == 3


def test_an_engine_that_loses_its_gpu_costs_nobody_a_word() -> None:
    """It says so for the job that was lost, and refuses all others until it has ended."""
    expected = undisturbed()
    with running("--engines", "2") as there, there.connect() as unlucky, there.connect() as healthy:
        opened(healthy)
        opened(unlucky)
        before = engines(there)
        unlucky.audio(LOST)
        assert said(healthy, AUDIO) == expected
        unlucky.send(wire.Eos())
        messages, code, reason = unlucky.rest()
        assert (code, reason) == (1000, "done")
        assert len(words(messages)) == 1 and not any(isinstance(m, wire.Gap) for m in messages)
        until(lambda: len(engines(there)) == 2 and before[0] not in engines(there))
        code, log = there.stop()
    assert code == 0 and log.count("event=engine_ended") == 1


@pytest.mark.parametrize(
    ("broken", "code", "told"),
    [
        ("sentence", 2, "no model for engine 1 of 2"),
        ("crash", 1, "an engine process ended at its start; its log says why"),
    ],
)
def test_an_engine_that_cannot_start_ends_the_daemon_with_a_sentence(
    broken: str, code: int, told: str
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.helpers.ingress_rig",
            "serve",
            "--port",
            "0",
            "--engines",
            "2",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, BROKEN: broken},
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert f"whisper-stream: error: {told}\n" in done.stderr
    assert "Traceback" not in done.stderr and "secret" not in done.stderr


@pytest.mark.timeout(120)  # several engines with a model start
def test_real_speech_is_understood_though_an_engine_is_killed() -> None:
    """Real weights, the real command; the words are those of the recording's published text."""
    command = [sys.executable, "-m", "whisper_stream.clients"]
    serve = [*command, "serve", "--model", "tiny.en", "--engines", "2", "--port", "0", "--announce"]
    with subprocess.Popen(
        serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as one:
        try:
            assert one.stdout is not None
            url = json.loads(one.stdout.readline())["url"]
            there = Running(one, url)
            play = [*command, str(ROOT / "tests/data/en-speech-jfk.wav"), "--server", url, "--json"]
            with subprocess.Popen(
                [*play, "--speed", "4"], stdout=subprocess.PIPE, text=True
            ) as client:
                assert client.stdout is not None
                said = ""
                killed = False
                for line in client.stdout:
                    message = json.loads(line)
                    if message["type"] == "commit":
                        said += "".join(word["text"] for word in message["words"])
                        if not killed:
                            os.kill(engines(there)[0], signal.SIGKILL)
                            killed = True
            assert client.returncode == 0 and killed
        finally:
            one.terminate()
    assert re.findall(r"[a-z]+", said.casefold()) == JFK.split()


@pytest.mark.parametrize(
    ("number", "all_are_told"), [(signal.SIGTERM, True), (signal.SIGINT, False)]
)
def test_a_signal_lets_streams_finish(number: signal.Signals, all_are_told: bool) -> None:
    expected = undisturbed()
    with running("--engines", "2", "--ingress", "2") as there, there.connect() as peer:
        opened(peer)
        peer.audio(AUDIO)
        children = there.children()
        if all_are_told:
            for pid in children:
                os.kill(pid, number)
        there.process.send_signal(number)
        messages, close, _ = peer.rest()
        there.process.communicate(timeout=30)
        assert there.process.returncode == 0
        assert close == 1012 and words(messages) == expected
    assert all(gone(pid) for pid in children)
