"""The daemon as a process: why it cannot start, what signals do, and a real model behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol
from whisper_stream.model.media.audio import load_audio
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import Peer, speech
from ...helpers.stream_rig import MSGPACK, transcript

SCRIPTED = (
    "import sys; from tests.helpers.server_rig import ScriptedEngine; "
    "from whisper_stream.server.daemon.main import main; engine = ScriptedEngine(); "
    "engine.gate.clear(); sys.exit(main(sys.argv[1:], lambda config: engine))"
)


def serve(*flags: str, scripted: bool = False) -> subprocess.Popen[str]:
    program = ["-c", SCRIPTED] if scripted else ["-m", "whisper_stream.server"]
    return subprocess.Popen(
        [sys.executable, "-W", "error", *program, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    url: str = json.loads(line)["url"]
    return url


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "{busy}"], ["cannot listen", "{busy}", "--port"]),
        (["--port", "ninety"], ["--port", "ninety"]),
        (["--port", "70000"], ["--port", "65535"]),
        (["--host", "256.1.1.1", "--port", "0"], ["cannot listen", "256.1.1.1"]),
        (["--max-streams", "0"], ["--max-streams", "1 or more"]),
        (["--sing"], ["--sing", "--help"]),
        (["--model", "no-such-model", "--port", "0"], ["no-such-model"]),
        (["--device", "abacus", "--port", "0"], ["abacus"]),
    ],
)
def test_what_cannot_start_says_why_in_one_line(flags: list[str], words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        with serve(*(flag.format(busy=port) for flag in flags)) as process:
            out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert out == "" and err.startswith("whisper-stream: error: ") and err.count("\n") == 1
    for word in words:
        assert word.format(busy=port) in err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_an_idle_daemon_well(name: str) -> None:
    with serve("--port", "0", "--announce", scripted=True) as process:
        assert announced(process).startswith("ws://127.0.0.1:")
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    lines = err.splitlines()
    assert "listening on ws://127.0.0.1:" in lines[0] and "event=stopped" in lines[-1]
    assert len(lines) == 2


def test_a_second_signal_ends_it_at_once() -> None:
    with serve("--port", "0", "--announce", scripted=True) as process:
        with connect(announced(process), proxy=None) as ws:
            peer = Peer(ws)
            peer.send(wire.Start())
            peer.audio(speech(1.0))
            peer.until(wire.Ready)
            process.send_signal(signal.SIGTERM)
            peer.until(wire.Warning)  # the engine is held: the stream would take ten seconds
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == -signal.SIGTERM
        process.communicate()


def test_the_real_daemon_transcribes_and_does_not_outlive_its_parent() -> None:
    """With tiny.en and real speech; its standard input is the parent's leash."""
    samples = load_audio(Path(__file__).parents[2] / "data" / "en-speech-jfk.wav")
    audio = (np.asarray(samples) * 32_767).astype("<i2").tobytes()
    flags = ["--model", "tiny.en", "--port", "0", "--announce", "--exit-with-stdin"]
    flags += ["--compute-type", "float32"]  # the same words on any processor
    with serve(*flags) as process:
        url = announced(process)
        with connect(url, subprotocols=[Subprotocol(MSGPACK)], compression=None, proxy=None) as ws:
            peer = Peer(ws)
            peer.send(wire.Start(language="en"))
            for start in range(0, len(audio), 32_000):
                peer.audio(audio[start : start + 32_000])
            peer.send(wire.Eos())
            messages, code, _ = peer.rest()
        _, err = process.communicate(timeout=30)  # closes its standard input
    assert code == 1000 and process.returncode == 0, err
    done = messages[-1]
    assert isinstance(done, wire.Done) and done.samples * 2 == len(audio)
    text = transcript(messages).lower()
    assert "what your country can do for you" in text
    assert "what you can do for your country" in text
    assert "country" not in err
