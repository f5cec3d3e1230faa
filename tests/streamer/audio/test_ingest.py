"""Client bytes to 16 kHz mono: chunking does not matter, and the resampler equals a one-shot run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import av
import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.errors import IngestError

Samples = NDArray[np.float32]


def ingest(encoding: str, rate: int, channels: int, chunks: Iterable[bytes]) -> Samples:
    reader = PcmIngest(encoding, rate, channels)
    parts = [reader.push(chunk) for chunk in chunks]
    parts.append(reader.finish())
    out = np.concatenate(parts)
    assert reader.samples_out == len(out)
    assert all(part.dtype == np.float32 for part in parts)
    return out


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at, turn = [], 0, 0
    while at < len(data):
        chunks.append(data[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return chunks


def sweep(rate: int, seconds: float = 0.5) -> Samples:
    """A rising tone, in -0.5..0.5."""
    t = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * (200 + 1500 * t) * t)).astype(np.float32)


def to_s16(samples: Samples) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


@given(
    values=st.lists(st.integers(-32768, 32767), max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_s16_of_any_chunking_is_exact(values: list[int], sizes: list[int]) -> None:
    data = np.array(values, "<i2").tobytes()
    out = ingest("s16le", 16_000, 1, cut(data, sizes))
    assert out.tolist() == [value / 32768 for value in values]


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("size", [1, 7, 640, 100_000])
def test_resampling_equals_one_shot(rate: int, size: int) -> None:
    samples = sweep(rate, 0.2)
    data = to_s16(samples)
    source = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    expected = soxr.resample(source, rate, 16_000, quality="HQ")
    out = ingest("s16le", rate, 1, cut(data, [size]))
    assert len(out) == len(expected)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["mulaw", "alaw"])
def test_companded_samples_are_those_of_g711(name: str) -> None:
    """FFmpeg's decoder is the reference, for all 256 codes."""
    codes = bytes(range(256))
    context: Any = av.AudioCodecContext.create(f"pcm_{name}", "r")
    context.sample_rate, context.layout = 8_000, "mono"
    [frame] = context.decode(av.Packet(codes))
    out = ingest(name, 16_000, 1, cut(codes, [7]))
    assert out.tolist() == (frame.to_ndarray()[0] / 32768).tolist()


def test_resampled_length_keeps_the_clock() -> None:
    out = ingest("f32le", 44_100, 1, [sweep(44_100, 3.0).tobytes()])
    assert abs(len(out) - 48_000) <= 1


@pytest.mark.parametrize("size", [1, 3, 5, 4096])
def test_stereo_is_the_mean_of_both_channels(size: int) -> None:
    left, right = sweep(16_000), -0.25 * sweep(16_000)[::-1]
    data = np.stack([left, right], axis=1).astype("<f4").tobytes()
    out = ingest("f32le", 16_000, 2, cut(data, [size]))
    np.testing.assert_allclose(out, (left + right) / 2, rtol=0, atol=1e-7)


def test_floats_that_are_no_levels_do_no_harm() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3.0, -7.0, 0.25, 1e-45], "<f4")
    out = ingest("f32le", 16_000, 1, [values.tobytes()])
    assert out.tolist() == pytest.approx([0.0, 1.0, -1.0, 1.0, -1.0, 0.25, 0.0])


def test_counts_of_unfinished_samples() -> None:
    reader = PcmIngest("s16le", 16_000, 2)
    assert len(reader.push(b"\1\2\3")) == 0
    assert reader.samples_in == 0
    assert len(reader.push(b"\4\5")) == 1
    assert (reader.samples_in, reader.samples_out) == (1, 1)
    assert len(reader.push(b"")) == 0
    assert len(reader.finish()) == 0


@pytest.mark.parametrize(
    ("encoding", "rate", "channels", "word"),
    [
        ("mp3", 16_000, 1, "encoding"),
        ("s16le", 7_999, 1, "sample_rate"),
        ("s16le", 48_001, 1, "sample_rate"),
        ("f32le", 16_000, 3, "channels"),
        ("f32le", 16_000, 0, "channels"),
    ],
)
def test_other_formats_are_refused(encoding: str, rate: int, channels: int, word: str) -> None:
    with pytest.raises(IngestError, match=word):
        PcmIngest(encoding, rate, channels)
