"""Standard input, addresses and several files: every kind of audio, and what cannot be audio."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.errors import SourceError
from whisper_stream.clients.sources.files import AudioSource
from whisper_stream.clients.sources.pipes import PcmFormat, PipeSource, UrlSource

from ...helpers.texts import DATA, SPEECH, check_times, errors_in, read_srt, read_vtt

FORMATS = {
    "opus.webm": ["-c:a", "libopus"],
    "telephone.wav": ["-c:a", "pcm_mulaw", "-ar", "8000"],
    "music.mp3": ["-ac", "2", "-ar", "44100"],
    "film.mp4": ["-f", "lavfi", "-i", "color=c=gray:s=64x64:r=5:d=11", "-shortest"],
}


def encode(target: str, *options: str) -> None:
    command = ["ffmpeg", "-y", "-v", "error", "-i", str(SPEECH), *options, target]
    subprocess.run(command, check=True)


@contextlib.contextmanager
def pipe_of(data: bytes, cut: int = 777) -> Iterator[int]:
    """A pipe that somebody else writes ``data`` to, in odd pieces."""
    reading, writing = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(writing, "wb", buffering=0) as end:
            for at in range(0, len(data), cut):
                end.write(data[at : at + cut])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield reading
    finally:
        os.close(reading)
        thread.join(10)


def heard(data: bytes, pcm: PcmFormat | None = None) -> NDArray[np.int16]:
    with pipe_of(data) as descriptor, open(descriptor, "rb", closefd=False) as pipe:
        return np.frombuffer(b"".join(PipeSource(pcm, pipe).chunks()), "<i2")


def spoken() -> NDArray[np.int16]:
    return np.frombuffer(b"".join(AudioSource(SPEECH).chunks()), "<i2")


def test_plain_samples_come_through_as_they_are() -> None:
    samples = spoken()
    assert np.array_equal(heard(samples.tobytes()), samples)
    assert np.array_equal(heard(samples.tobytes() + b"x"), samples)  # half a sample at the end


def test_a_container_is_recognised() -> None:
    assert np.array_equal(heard(SPEECH.read_bytes()), spoken())


F32 = PcmFormat(encoding="f32le")
TELEPHONE = PcmFormat(sample_rate=8_000)
UNLIKE = "samples do not look like"


@pytest.mark.parametrize(
    ("kind", "pcm", "doubt"),
    [
        ("s16", None, None),
        ("s16", F32, f"standard input: {UNLIKE} f32le: is the encoding s16le?"),
        ("f32", F32, None),
        ("f32", None, None),  # which the server will say
        ("f32", TELEPHONE, f"standard input: {UNLIKE} s16le: is the encoding f32le?"),
        (
            "half",
            None,
            "standard input ends inside a sample of 2 bytes: do --encoding and --channels fit?",
        ),
        (
            "cut",
            None,
            "standard input ends after 4.0 s; its header says 11.0 s: the rest is missing",
        ),
        ("live", None, None),
    ],
)
def test_what_is_wrong_with_a_pipe_is_said(
    kind: str, pcm: PcmFormat | None, doubt: str | None
) -> None:
    speech = SPEECH.read_bytes()
    place = speech.index(b"data") + 4
    samples = spoken()
    data = {
        "s16": samples.tobytes(),
        "f32": (samples / 32_768).astype("<f4").tobytes(),
        "half": samples.tobytes() + b"x",
        "cut": speech[: place + 4 + 4 * 4 * 44_100],  # two channels
        "live": speech[:place] + b"\xff" * 4 + speech[place + 4 :],
    }[kind]
    with pipe_of(data, 5_000) as descriptor, open(descriptor, "rb", closefd=False) as pipe:
        source = PipeSource(pcm, pipe)
        got = np.frombuffer(b"".join(source.chunks()), "<i2")
    assert (source.damage if kind == "cut" else source.doubt) == doubt
    assert source.damage is None or source.doubt is None
    if kind == "live" or (kind, pcm) == ("f32", F32):
        assert np.array_equal(got, samples)


def test_floats_that_are_no_numbers_do_not_silence_the_rest() -> None:
    """A resampler that was given one would give nothing else from there on."""
    tone = (0.5 * np.sin(np.arange(44_100) * 0.05)).astype("<f4")
    broken = tone.copy()
    broken[[100, 200, 300]] = np.nan, np.inf, -np.inf
    pcm = PcmFormat(encoding="f32le", sample_rate=44_100)
    got, want = heard(broken.tobytes(), pcm), heard(tone.tobytes(), pcm)
    np.testing.assert_array_equal(got[1_000:], want[1_000:])


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_declared_samples_are_converted(rate: int) -> None:
    """Stereo floats of a tone, against the tone computed at 16 kHz."""
    seconds = np.arange(rate) / rate
    tone = 0.5 * np.sin(2 * np.pi * 440 * seconds)
    stereo = np.stack([2 * tone, 0 * tone], axis=1).astype("<f4")
    pcm = PcmFormat(encoding="f32le", sample_rate=rate, channels=2)
    got = heard(stereo.tobytes(), pcm).astype(np.float64) / 32_768
    want = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert abs(got.size - want.size) <= 1
    middle = slice(1_000, 15_000)
    assert np.abs(got[middle] - want[middle]).max() < 2e-3


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "ended without any audio"), (b"RIFF" + bytes(200), "is not audio that can be decoded")],
)
def test_what_is_no_audio(data: bytes, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        heard(data)


def test_an_address_without_a_password_in_messages() -> None:
    source = UrlSource("http://user:secret@127.0.0.1:9/talk.mp3?token=secret")
    with pytest.raises(SourceError) as error:
        source.check()
    assert "secret" not in str(error.value)
    assert "http://127.0.0.1:9/talk.mp3 cannot be opened" in str(error.value)


def test_an_address_is_heard() -> None:
    serve = functools.partial(Quiet, directory=str(DATA))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = UrlSource(f"http://127.0.0.1:{server.server_port}/{SPEECH.name}")
        assert source.check() == pytest.approx(11.0)
        assert np.array_equal(np.frombuffer(b"".join(source.chunks()), "<i2"), spoken())
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.needs("ffmpeg")
def test_several_files_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, options in FORMATS.items():
        encode(name, *options)
    assert main([*FORMATS, "--speed", "0", "--output", "{}.srt"]) == 0
    printed = capfd.readouterr()
    assert [line for line in printed.err.splitlines() if line.endswith(":")] == [
        f"{name}:" for name in FORMATS
    ]
    for name in FORMATS:
        cues = read_srt((tmp_path / f"{Path(name).stem}.srt").read_text())
        assert errors_in(" ".join(text for *_, text in cues)).wer <= 0.1, name
        check_times(cues)


@pytest.mark.needs("ffmpeg")
def test_ffmpeg_pipes_into_standard_input(tmp_path: Path) -> None:
    output = tmp_path / "talk.vtt"
    convert = ["ffmpeg", "-v", "error", "-i", str(SPEECH), "-ac", "1"]
    convert += ["-f", "f32le", "-ar", "22050", "-"]
    caption = [sys.executable, "-m", "whisper_stream.clients", "-", "--output", str(output)]
    caption += ["--encoding", "f32le", "--sample-rate", "22050"]
    with subprocess.Popen(convert, stdout=subprocess.PIPE) as ffmpeg:
        done = subprocess.run(caption, stdin=ffmpeg.stdout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cues = read_vtt(output.read_text())
    check_times(cues)
    assert errors_in(" ".join(text for *_, text in cues)).wer <= 0.1
    assert errors_in(" ".join(re.findall(r"\] (.*)", done.stdout))).wer <= 0.1


def test_the_command_doubts_an_endless_pipe_at_once() -> None:
    """One line, before the pipe has ended; then the captions of whatever it is."""
    samples = np.tile(spoken(), 2)
    caption = [sys.executable, "-m", "whisper_stream.clients", "-", "--encoding", "f32le"]
    with subprocess.Popen(
        caption, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdin is not None and run.stderr is not None
        run.stdin.write(samples.tobytes())
        run.stdin.flush()
        doubt = "standard input: samples do not look like f32le: is the encoding s16le?"
        line = f"whisper-stream: warning: {doubt}\n".encode()
        assert line in iter(run.stderr.readline, b"")
        run.stdin.close()
        assert b"do not look" not in run.stderr.read()
        assert run.wait() == 0
