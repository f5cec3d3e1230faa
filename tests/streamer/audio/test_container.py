"""Containers in pieces sound like the whole file, and hostile ones end in a sentence."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.audio.container import CONTAINERS, ContainerIngest
from whisper_stream.streamer.audio.ingest import open_ingest
from whisper_stream.streamer.errors import IngestError

from ...helpers.server_rig import daemon

Samples = NDArray[np.float32]

# encoding: FFmpeg's muxer, codec and rate
KINDS = {
    "webm": ("webm", "libopus", 48_000),
    "ogg": ("ogg", "libopus", 48_000),
    "mp3": ("mp3", "libmp3lame", 44_100),
    "wav": ("wav", "pcm_s16le", 44_100),
    "flac": ("flac", "flac", 44_100),
    "mp4": ("mp4", "aac", 44_100),
    "aac": ("adts", "aac", 44_100),
}


def encoded(kind: str, audio: Samples, rate: int | None = None) -> bytes:
    muxer, codec, usual = KINDS[kind]
    options = {"movflags": "frag_keyframe+empty_moov"} if kind == "mp4" else {}
    out = io.BytesIO()
    with av.open(out, "w", format=muxer, options=options) as container:
        stream: Any = container.add_stream(codec, rate=rate or usual)
        stream.layout = "stereo"
        frame = av.AudioFrame.from_ndarray(
            np.round(audio * 32767).astype("<i2")[None], format="s16", layout="mono"
        )
        frame.sample_rate = 16_000
        packets = stream.encode(frame)
        for packet in (*packets, *stream.encode(None)):
            container.mux(packet)
    return out.getvalue()


@pytest.fixture(scope="module")
def files(jfk: Samples) -> dict[str, bytes]:
    return {kind: encoded(kind, jfk) for kind in KINDS}


def decoded(reader: ContainerIngest, pieces: Iterator[bytes]) -> Samples:
    out = []
    for piece in pieces:
        out.append(reader.push(piece))
        while reader.has_more:
            out.append(reader.more())
    out.append(reader.finish())
    while reader.has_more:
        out.append(reader.more())
    reader.close()
    return np.concatenate(out)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [397, 16_384, 10_000_000])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_sound_like_the_whole_file(files: dict[str, bytes], kind: str, size: int) -> None:
    reader = ContainerIngest(kind)
    sound = decoded(reader, cut(files[kind], size))
    whole = load_audio(io.BytesIO(files[kind]))
    assert reader.error is None and reader.samples_out == len(sound)
    if kind == "mp3":  # its padding at the end is only known to who has seen the end
        assert 0 <= len(sound) - len(whole) < 1_000
        np.testing.assert_allclose(sound[: len(whole)], whole, rtol=0, atol=0.002)
    else:
        np.testing.assert_array_equal(sound, whole)


def test_sound_comes_before_the_file_has_ended(files: dict[str, bytes]) -> None:
    reader = ContainerIngest("webm")
    half = len(files["webm"]) // 2
    assert len(reader.push(files["webm"][:half])) + len(reader.more()) > 4 * 16_000
    reader.close()


def test_what_comes_out_depends_on_the_bytes_alone(files: dict[str, bytes]) -> None:
    def lengths() -> list[int]:
        reader = ContainerIngest("ogg")
        out = []
        for piece in cut(files["ogg"], 20_011):
            out.append(len(reader.push(piece)))
            while reader.has_more:
                out.append(len(reader.more()))
        reader.close()
        return out

    assert lengths() == lengths() == lengths()


def test_a_bomb_is_held_back() -> None:
    """Hours of digital silence in a few kilobytes: only a little is unpacked ahead."""
    bomb = encoded("flac", np.zeros(16_000 * 60 * 5, np.float32), 48_000)
    assert len(bomb) < 100_000
    reader = ContainerIngest("flac")
    for piece in cut(bomb, 16_384):
        assert len(reader.push(piece)) <= 10 * 16_000
        for _ in range(3):
            assert len(reader.more()) <= 10 * 16_000
    assert reader.has_more
    reader.close()
    assert not any(thread.name == "container" for thread in threading.enumerate())


def _header(rate: int, channels: int) -> bytes:
    out = bytearray(encoded("wav", np.zeros(16_000, np.float32)))
    out[22:24] = channels.to_bytes(2, "little")
    out[24:28] = rate.to_bytes(4, "little")
    return bytes(out)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("webm", b"RIFF" + bytes(50_000), "not webm"),
        ("wav", b"", "not wav"),
        ("mp3", bytes(100_000), "not mp3"),
        ("wav", _header(1, 2), "sample rate 1"),
        ("wav", _header(44_100, 64), "channels|not wav"),
        ("mp4", b"\0\0\0\x20ftypisom" + b"\xff" * 100_000, "not mp4"),
        ("ogg", b"#EXTM3U\nfile:///etc/passwd\n" * 1000, "not ogg"),
    ],
)
def test_what_cannot_be_decoded_is_told(kind: str, data: bytes, words: str) -> None:
    reader = ContainerIngest(kind)
    decoded(reader, cut(data, 16_384))
    assert reader.error is not None
    assert any(word in reader.error for word in words.split("|")), reader.error


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=40)), max_size=8
    ),
    size=st.integers(100, 40_000),
)
def test_damaged_files_never_hang_or_raise(
    files: dict[str, bytes], kind: str, edits: list[tuple[int, bytes]], size: int
) -> None:
    data = bytearray(files[kind])
    for at, piece in edits:
        at %= len(data)
        data[at : at + len(piece)] = piece
    reader = ContainerIngest(kind)
    assert len(decoded(reader, cut(bytes(data), size))) <= 20 * 60 * 16_000


@pytest.mark.parametrize("size", [997, 10_000_000])
@pytest.mark.parametrize("kind", ["flac", "ogg", "mp4", "aac", "mp3"])
def test_the_first_damage_is_told_once(files: dict[str, bytes], kind: str, size: int) -> None:
    data = bytearray(files[kind])
    for place in (len(data) // 2, len(data) * 3 // 4):
        data[place : place + 600] = bytes(600)
    reader = ContainerIngest(kind)
    told = []
    for piece in cut(bytes(data), size):
        reader.push(piece)
        told.append(reader.take_warning())
        while reader.has_more:
            reader.more()
            told.append(reader.take_warning())
    reader.finish()
    told.append(reader.take_warning())
    reader.close()
    [warning] = [each for each in told if each is not None]
    assert warning.code == "damaged_audio"
    assert warning.message.startswith(f"the {kind} is damaged near 5."), warning.message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_stream_that_ends_is_not_damaged(
    files: dict[str, bytes], kind: str, share: float
) -> None:
    reader = ContainerIngest(kind)
    for piece in cut(files[kind][: int(len(files[kind]) * share)], 5_000):
        reader.push(piece)
        while reader.has_more:
            reader.more()
    reader.finish()
    while reader.has_more:
        reader.more()
    assert reader.take_warning() is None
    reader.close()


def test_encodings_of_the_wire_are_those_that_can_be_opened() -> None:
    for encoding in wire.ENCODINGS:
        open_ingest(encoding, 16_000, 1).close()
    assert set(CONTAINERS) < set(wire.ENCODINGS)
    for wrong in ("m3u", "concat", "/etc/passwd"):
        with pytest.raises(IngestError, match="use one of"):
            open_ingest(wrong, 16_000, 1)


def test_a_container_through_the_daemon(files: dict[str, bytes], jfk: Samples) -> None:
    with daemon() as running:
        with running.connect(wire.MSGPACK_SUBPROTOCOL) as peer:
            peer.send(wire.Start(encoding="webm"))
            for piece in cut(files["webm"], 5_000):
                peer.audio(piece)
            peer.send(wire.Eos())
            done = peer.rest()[0][-1]
        assert isinstance(done, wire.Done)
        assert abs(done.duration - len(jfk) / 16_000) < 0.05
        with running.connect() as peer:
            peer.send(wire.Start(encoding="flac"))
            peer.audio(files["flac"][:60_000] + bytes(200) + files["flac"][:100])
            peer.audio(b"\0" * 200_000)
            peer.audio(files["flac"][100_000:])
            peer.send(wire.Eos())
            messages, _, _ = peer.rest()
        end = messages[-1]
        assert isinstance(end, wire.Done) and end.duration > 1
        told = [each for each in messages if isinstance(each, wire.Warning)]
        assert [each.code for each in told if each.code == "damaged_audio"] == ["damaged_audio"]
        with running.connect() as peer:
            peer.send(wire.Start(encoding="mp4"))
            peer.audio(b"this is no audio" * 5_000)
            peer.send(wire.Eos())
            messages, code, _ = peer.rest()
        failed = [m for m in messages if isinstance(m, wire.Error)]
        assert [(m.code, m.fatal) for m in failed] == [("bad_audio", False)] and code == 1000
