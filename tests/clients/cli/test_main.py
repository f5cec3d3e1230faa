"""The command line: what it prints, what it returns, and one clear line for every bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from whisper_stream import __version__
from whisper_stream.clients.cli import main as cli
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, FakeServer, Peer, fake_server, segment

SPEECH = Path(__file__).parents[2] / "data" / "en-speech-jfk.wav"
PROGRAM = (sys.executable, "-m", "whisper_stream.clients")
LINES = "[00:00.00 → 00:00.80] Ask not\n[00:01.20 → 00:01.50] what\n"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def fails(capsys: pytest.CaptureFixture[str], code: int, *argv: str | Path) -> str:
    """Run a command that must fail; the text of its one line on stderr."""
    assert cli.main([str(each) for each in argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("whisper-stream: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("whisper-stream: error: ").rstrip("\n")


def test_help_lists_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for word in (*cli.COMMANDS, "--speed", "--output", "--json", "--server", "--compute-type"):
        assert f"  {word} " in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"whisper-stream {__version__}\n"


def test_first_word_picks_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        cli.COMMANDS, "again", cli.Command("clients.cli.main:main", "a row is enough")
    )
    assert cli.main(["again", "--version"]) == 0
    assert capsys.readouterr().out == f"whisper-stream {__version__}\n"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_answers_help(name: str) -> None:
    command = [*PROGRAM, name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"whisper-stream {name}" in done.stdout


def test_captions_as_plain_lines(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(SPEECH), "--server", server.url, "--speed", "100"]
    assert cli.main([*argv, "--language", "EN", "--prompt", "Kennedy"]) == 0
    assert capsys.readouterr() == (LINES, "")
    [peer] = server.peers
    assert peer.received == [wire.Start(language="en", prompt="Kennedy", resume=True), wire.Eos()]
    assert len(peer.audio) == 2 * 11 * 16_000


def test_json_is_every_message_and_nothing_else(
    server: FakeServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main([str(SPEECH), "--server", server.url, "--speed", "0", "--json"]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    messages = [json.loads(line) for line in out.splitlines()]
    assert messages[0]["type"] == "ready"
    assert messages[-1] == {
        "type": "done",
        "seq": 0,
        "duration": 11.0,
        "samples": 176_000,
        "words": 3,
    }


def test_output_is_the_final_transcript(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    argv = [str(SPEECH), "--server", server.url, "--speed", "0", "--output", str(path)]
    assert cli.main(argv) == 0
    assert path.read_text() == "Ask not\nwhat\n"


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ((), "name an audio file or a command"),
        (("transscribe",), "neither a file nor a command (mic, serve, models"),
        (("no/such.wav",), "no/such.wav does not exist"),
        (("a.wav", "b.wav"), "a.wav does not exist"),
        (("a.wav", "b.wav", "--output", "c.srt"), "needs {} for each one's name"),
        (("-", "-"), "can be read once only"),
        ((SPEECH, "--channels", "2"), "--channels is for raw audio on standard input"),
        (("-", "--channels", "0"), "'0' is not a whole number from 1 to 32"),
        (("-", "--sample-rate", "16k"), "'16k' is not a whole number from 1000"),
        (("--url", "talk.mp3"), "is no address of a kind that can be read"),
        (("--url", "file:///etc/passwd"), "is no address of a kind that can be read"),
        ((SPEECH, "--speed", "-1"), "'-1' is not a number from 0 up"),
        ((SPEECH, "--speed", "nan"), "'nan' is not a number"),
        ((SPEECH, "--speed", "fast"), "'fast' is not a number"),
        ((SPEECH, "--language", "klingon"), "'klingon' is no language code"),
        ((SPEECH, "--task", "sing"), "invalid choice: 'sing'"),
        ((SPEECH, "--threads", "-1"), "'-1' is not a whole number from 0 to 512"),
        ((SPEECH, "--timeline", "x.txt"), "--timeline x.txt: the page is HTML"),
        (("srve",), "did you mean serve? See"),
        ((SPEECH, "--loud"), "unrecognized arguments: --loud"),
        ((SPEECH, "--output", "a.doc"), "the extension must be one of"),
        ((SPEECH, "--output", "/no/such/a.srt"), "cannot be written"),
        ((SPEECH, "--server", "http://host"), "write it like ws://"),
        ((SPEECH, "--server", "ws://host", "--model", "base"), "--model is for an embedded"),
    ],
)
def test_bad_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str | Path, ...], reason: str
) -> None:
    assert reason in fails(capsys, 2, *argv)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "is an empty file"), (b"Hello.\n", "is a text"), (bytes(999), "is not audio")],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    assert reason in fails(capsys, 2, path)


def test_a_directory_and_silence_of_no_length_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is a folder" in fails(capsys, 2, tmp_path)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
    assert "holds no sound" in fails(capsys, 2, tmp_path / "a.wav")


def test_an_unreachable_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as server:
        url = server.url
    assert "connection refused" in fails(capsys, 1, SPEECH, "--server", url)


def test_an_error_of_the_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.receive()
        await peer.send(wire.Error(code="invalid_field", message="no such\nlanguage", field="l"))
        await peer.socket.close(1008)

    with fake_server(refuse) as server:
        text = fails(capsys, 1, SPEECH, "--server", server.url, "--language", "xx")
    assert text == "no such language"


async def crash(peer: Peer) -> None:
    await peer.ready()
    await peer.receive()
    await peer.send(wire.Commit(text=" Ask not", words=WORDS[:2]), segment(0, WORDS[:2]))
    await peer.send(wire.Commit(text=" what", words=WORDS[2:]))
    await peer.socket.close(1011, "out of memory")


def test_a_lost_connection_keeps_what_was_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    with fake_server(crash) as server:
        argv = [str(SPEECH), "--server", server.url, "--output", str(path)]
        assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == LINES
    assert err == (
        "whisper-stream: error: the server closed the connection before the stream was done "
        "(code 1011, out of memory)\n"
    )
    assert path.read_text() == "Ask not\nwhat\n"


def test_a_failed_stream_without_words_leaves_the_old_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def drop(peer: Peer) -> None:
        await peer.ready()

    path = tmp_path / "a.txt"
    path.write_text("old")
    with fake_server(drop) as server:
        fails(capsys, 1, SPEECH, "--server", server.url, "--output", path)
    assert path.read_text() == "old"


def test_warnings_gaps_and_passing_errors_go_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def complain(peer: Peer) -> None:
        await peer.ready()
        await peer.send(
            wire.Warning(code="c", message="it is \x1b[31mloud"),
            wire.Gap(start=1.0, end=2.5, reason="overload"),
            wire.Error(code="c", message="ignored", fatal=False),
        )
        await peer.until_eos()
        await peer.done()

    with fake_server(complain) as server:
        assert cli.main([str(SPEECH), "--server", server.url, "--speed", "0"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "whisper-stream: warning: it is  [31mloud",
        "whisper-stream: warning: nothing was transcribed from 1.00 s to 2.50 s: overload",
        "whisper-stream: error: ignored",
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("gap", "nothing was transcribed from 1.00 s to 2.50 s: overload"),
        ("stop", "the server stopped before the whole recording was sent"),
    ],
)
def test_a_transcript_that_is_not_whole_fails(
    fault: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.ready()
        if fault == "gap":
            await peer.until_eos()
            await peer.send(wire.Gap(start=1.0, end=2.5, reason="overload"))
        else:
            await peer.receive()
        await peer.done()

    speed = "0" if fault == "gap" else "1"
    with fake_server(script) as server:
        assert cli.main([str(SPEECH), "--server", server.url, "--speed", speed]) == 1
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", [f"whisper-stream: warning: {said}"])


class Interrupted:
    """Sends signals to the client's process when the stream has come to a certain point."""

    def __init__(self, number: signal.Signals, *, answer: bool) -> None:
        self.number = number
        self.answer = answer  # whether the stream is finished after eos
        self.process: subprocess.Popen[str] | None = None

    async def script(self, peer: Peer) -> None:
        await peer.ready()
        await peer.receive()
        await peer.send(wire.Commit(text=" Ask not", words=WORDS[:2]))
        self.signal()
        await peer.until_eos()
        if self.answer:
            await peer.send(segment(0, WORDS[:2]))
            await peer.send(wire.Commit(text=" what", words=WORDS[2:]), segment(1, WORDS[2:]))
            await peer.done()
        else:
            self.signal()
            await peer.socket.wait_closed()

    def signal(self) -> None:
        assert self.process is not None
        self.process.send_signal(self.number)

    def run(self, *options: str) -> tuple[int, str, str]:
        with fake_server(self.script) as server:
            argv = [*PROGRAM, str(SPEECH), "--server", server.url, "--speed", "0.5", *options]
            with subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                self.process = process
                out, err = process.communicate(timeout=60)
                return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_audio_and_prints_the_last_words(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = tmp_path / "a.txt"
    done = Interrupted(number, answer=True).run("--output", str(path))
    assert done == (code, LINES, "")
    assert path.read_text() == "Ask not\nwhat\n"


def test_a_second_signal_gives_up_but_keeps_what_was_committed() -> None:
    done = Interrupted(signal.SIGINT, answer=False).run()
    assert done == (130, "[00:00.00 → 00:00.80] Ask not\n", "")


def test_a_reader_that_went_away_ends_the_command_quietly(server: FakeServer) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [*PROGRAM, str(SPEECH), "--server", server.url, "--speed", "0"]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.timeout(120)  # a daemon with a model starts
def test_speech_through_an_embedded_daemon(tmp_path: Path) -> None:
    """Real weights, the real server: what the command is for."""
    path = tmp_path / "a.srt"
    argv = [*PROGRAM, str(SPEECH), "--speed", "0", "--threads", "1", "--output", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    times = r"\[(\d\d:\d\d\.\d\d) → (\d\d:\d\d\.\d\d)\] (.+)"
    lines = [re.fullmatch(times, line) for line in done.stdout.splitlines()]
    spoken = " ".join(line[3] for line in lines if line is not None)
    assert None not in lines
    assert "what your country can do for you" in re.sub(r"[^\w ]", "", spoken).lower()
    stamps = [stamp for line in lines if line is not None for stamp in line.groups()[:2]]
    assert stamps == sorted(stamps)
    assert stamps[-1] <= "00:11.00"
    assert "your country can do for" in " ".join(path.read_text().split())


@pytest.mark.timeout(120)  # a daemon with a model starts
def test_ctrl_c_flushes_the_embedded_daemon() -> None:
    argv = [*PROGRAM, str(SPEECH), "--threads", "1", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []
        for line in process.stdout:
            seen.append(json.loads(line))
            if seen[-1]["type"] == "ack" and seen[-1]["samples"] >= 2 * 16_000:
                break
        process.send_signal(signal.SIGINT)
        seen += [json.loads(line) for line in process.stdout]
    assert process.returncode == 130
    assert seen[-1]["type"] == "done"
    assert seen[-1]["words"] > 0
    assert seen[-1]["duration"] < 11.0
    assert "segment" in [message["type"] for message in seen[-3:]]


def test_an_unknown_model_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert "nope" in fails(capfd, 2, SPEECH, "--model", "nope")


def test_a_port_in_use_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        text = fails(capfd, 2, "serve", "--host", "127.0.0.1", "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}" in text
