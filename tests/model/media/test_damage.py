"""Damaged and cut recordings are told of in one line; good ones never, whatever their headers leave open."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from whisper_stream.clients.cli import main as cli
from whisper_stream.clients.sources.files import AudioSource
from whisper_stream.model.media.audio import load_audio

from ...helpers.fake_server import fake_server

DATA = Path(__file__).parents[2] / "data"
SECONDS = 11.0
# kind: FFmpeg's muxer, codec, rate
KINDS = {
    "wav": ("wav", "pcm_s16le", 16_000),
    "flac": ("flac", "flac", 16_000),
    "mp3": ("mp3", "libmp3lame", 16_000),
    "ogg": ("ogg", "libopus", 48_000),
    "m4a": ("mp4", "aac", 16_000),
    "webm": ("webm", "libopus", 48_000),
    "aac": ("adts", "aac", 16_000),
    "aiff": ("aiff", "pcm_s16be", 16_000),
}


def write(path: Path, audio: NDArray[np.float32], kind: str, **options: str) -> bytes:
    muxer, codec, rate = KINDS[kind]
    samples = np.round(audio * 32767).astype("<i2")
    with av.open(str(path), "w", format=muxer, options=options) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        for at in range(0, len(samples), 4096):
            frame = av.AudioFrame.from_ndarray(samples[None, at : at + 4096], "s16", "mono")
            frame.sample_rate, frame.pts = 16_000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path.read_bytes()


@pytest.fixture(scope="module")
def files(jfk: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    whole = {kind: write(folder / f"a.{kind}", jfk, kind) for kind in KINDS}
    whole["m4a"] = write(folder / "a.m4a", jfk, "m4a", movflags="faststart")
    return whole


def zeros(data: bytes, count: int = 400) -> bytes:
    """The same with a block of zeros in the middle, as a bad sector leaves."""
    middle = len(data) // 2
    return data[:middle] + bytes(count) + data[middle + count :]


def told(path: Path) -> str | None:
    """What both readers of files say of one; they agree, and name it first."""
    source = AudioSource(path)
    heard = b"".join(source.chunks())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(load_audio(path)) == pytest.approx(len(heard) / 2, abs=1)
    texts = [str(each.message) for each in caught]
    assert texts == ([] if source.damage is None else [source.damage])
    if source.damage is None:
        return None
    name, found = source.damage[: len(str(path))], source.damage[len(str(path)) + 1 :]
    assert name == str(path) and "\n" not in found
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_are_not_doubted(files: dict[str, bytes], kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(files[kind])
    assert told(path) is None


@pytest.mark.parametrize("path", sorted(DATA.glob("*.flac")), ids=lambda path: path.stem)
def test_real_recordings_are_not_doubted(path: Path) -> None:
    assert told(path) is None


@pytest.mark.parametrize("kind", ["flac", "mp3", "ogg", "m4a"])
def test_damage_in_the_middle_is_told(files: dict[str, bytes], kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(zeros(files[kind]))
    found = told(path)
    assert found is not None and found.startswith("is damaged near "), found
    assert float(found.split()[3]) == pytest.approx(SECONDS / 2, abs=1.0)


def test_one_changed_bit_of_a_checksummed_file_is_told(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    data = bytearray(files["flac"])
    data[len(data) // 2] ^= 4
    path = tmp_path / "a.flac"
    path.write_bytes(data)
    assert "is damaged near 5." in (told(path) or "")


def test_many_places_are_one_line(files: dict[str, bytes], tmp_path: Path) -> None:
    data = bytearray(files["flac"])
    for tenth in range(1, 10):
        data[len(data) * tenth // 10] ^= 64
    path = tmp_path / "a.flac"
    path.write_bytes(data)
    found = told(path)
    assert found is not None and found.count(" s, ") == 2 and "more places" in found


def test_a_hole_of_a_webm_is_told(files: dict[str, bytes], tmp_path: Path) -> None:
    """FFmpeg looks for the next cluster, five seconds on, and says nothing."""
    path = tmp_path / "a.webm"
    path.write_bytes(zeros(files["webm"], 4_000))
    found = told(path)
    assert found is not None and found.endswith(" s of 11.0 s were read"), found


@pytest.mark.parametrize("spare", [1, 20, 77])
def test_a_file_that_breaks_off_inside_a_frame_is_played_to_there(
    files: dict[str, bytes], spare: int, tmp_path: Path
) -> None:
    """FFmpeg calls it an error to read the last frame of a cut AAC."""
    path = tmp_path / "a.aac"
    path.write_bytes(files["aac"][: int(len(files["aac"]) * 0.4) + spare])
    heard = sum(map(len, AudioSource(path).chunks())) / 2 / 16_000
    assert heard == pytest.approx(0.4 * SECONDS, abs=0.6)
    assert "is damaged near 4." in (told(path) or "")


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "m4a", "webm", "aiff"])
def test_a_cut_file_is_told(files: dict[str, bytes], kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(files[kind][: int(len(files[kind]) * 0.4) + 1])
    found = told(path)
    assert found is not None
    after, promise = found.split("; its header says ")
    whole, missing = promise.split(" s: ")
    assert missing == "the rest is missing"
    # an MP3 counts what its encoder put before and after, too
    assert float(whole) == pytest.approx(SECONDS, abs=0.11 if kind == "mp3" else 0.01)
    assert float(after.split()[2]) == pytest.approx(0.4 * SECONDS, abs=0.6)


def test_an_ogg_that_ends_inside_a_page_is_told(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    path.write_bytes(files["ogg"][: len(files["ogg"]) // 2])
    assert "inside a page: what followed is missing" in (told(path) or "")


@pytest.mark.parametrize("tail", [b"TAG" + bytes(125), bytes(5_000), b"APETAGEX" * 90])
def test_what_follows_the_sound_of_an_mp3_is_no_damage(
    files: dict[str, bytes], tail: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.mp3"
    path.write_bytes(files["mp3"] + tail)
    assert told(path) is None


def test_an_mp3_without_its_length_is_not_doubted(jfk: NDArray[np.float32], tmp_path: Path) -> None:
    """FFmpeg guesses how long it is from the first frames' bit rate, and is wrong."""
    quiet = np.concatenate([jfk, np.zeros(16_000 * 20, np.float32)])
    path = tmp_path / "a.mp3"
    write(path, quiet, "mp3", write_xing="0")
    assert told(path) is None
    path.write_bytes(path.read_bytes()[20_000:])  # joined on the way
    assert told(path) is None


@pytest.mark.parametrize("kind", ["wav", "flac", "webm"])
def test_streams_written_to_a_pipe_are_not_doubted(
    jfk: NDArray[np.float32], kind: str, tmp_path: Path
) -> None:
    """Their headers cannot say how long they are."""

    class Pipe:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += bytes(data)
            return len(data)

    pipe: Any = Pipe()
    muxer, codec, rate = KINDS[kind]
    with av.open(pipe, "w", format=muxer) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        samples = np.round(jfk * 32767).astype("<i2")
        for at in range(0, len(samples), 4096):
            frame = av.AudioFrame.from_ndarray(samples[None, at : at + 4096], "s16", "mono")
            frame.sample_rate, frame.pts = 16_000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    path = tmp_path / f"a.{kind}"
    path.write_bytes(pipe.data)
    assert told(path) is None


def test_open_files_are_looked_at_too(files: dict[str, bytes]) -> None:
    with pytest.warns(UserWarning, match=r"the audio given ends after 4\.4 s; its header says 11"):
        load_audio(io.BytesIO(files["wav"][: int(len(files["wav"]) * 0.4)]))


def test_a_pass_that_was_not_finished_says_nothing_of_the_end(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.flac"
    path.write_bytes(files["flac"][:100_000])
    source = AudioSource(path)
    chunks = source.chunks()
    next(chunks)
    assert source.damage is None
    list(chunks)
    assert source.damage is not None


def test_the_command_warns_in_one_line_and_succeeds(
    files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(files["wav"][: 44 + 2 * 16_000 * 3])
    with fake_server() as server:
        assert cli.main([str(path), "--server", server.url, "--speed", "0"]) == 0
    said = f"{path} ends after 3.0 s; its header says 11.0 s: the rest is missing"
    assert capsys.readouterr().err.splitlines() == [f"whisper-stream: warning: {said}"]
