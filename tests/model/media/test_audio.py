"""Audio in: files, containers and arrays become 16 kHz mono float32, or one clear sentence."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import whisper.audio
from av.audio.stream import AudioStream
from numpy.typing import NDArray
from whisper_stream.model.errors import AudioError
from whisper_stream.model.media import audio
from whisper_stream.model.media.audio import iter_audio, load_audio, pad_or_trim, to_waveform

JFK = Path(__file__).parents[2] / "data" / "en-speech-jfk.wav"


def sine(rate: int, seconds: float = 1.0, hz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def to_int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.round(samples * 32767).astype(np.int16)


def write_wav(path: Path, samples: NDArray[np.int16], rate: int) -> Path:
    """``samples``: [samples] or [samples, channels]."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def write_encoded(path: Path, codec: str, samples: NDArray[np.int16], rate: int) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, AudioStream)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_constants_equal_the_reference() -> None:
    names = (
        "SAMPLE_RATE N_FFT HOP_LENGTH CHUNK_LENGTH N_SAMPLES N_FRAMES N_SAMPLES_PER_TOKEN "
        "FRAMES_PER_SECOND TOKENS_PER_SECOND"
    )
    for name in names.split():
        assert getattr(audio, name) == getattr(whisper.audio, name), name


def test_import_loads_no_torch() -> None:
    code = "import sys, whisper_stream.model.media.audio; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pcm_at_16_khz_is_read_bit_for_bit(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-32768, 32768, 16_123).astype(np.int16)
    path = write_wav(tmp_path / "a.wav", samples, 16_000)
    loaded = load_audio(path)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, samples.astype(np.float32) / 32768)
    np.testing.assert_array_equal(load_audio(str(path)), loaded)
    np.testing.assert_array_equal(load_audio(io.BytesIO(path.read_bytes())), loaded)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000])
def test_resampling_keeps_length_and_tone(tmp_path: Path, rate: int) -> None:
    loaded = load_audio(write_wav(tmp_path / "a.wav", to_int16(sine(rate, 2.0)), rate))
    assert loaded.shape == (32_000,)
    np.testing.assert_allclose(loaded[500:-500], sine(16_000, 2.0)[500:-500], atol=2e-3)


def test_other_output_rate(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", to_int16(sine(48_000)), 48_000)
    np.testing.assert_allclose(
        load_audio(path, sr=8_000)[200:-200], sine(8_000)[200:-200], atol=2e-3
    )


def test_stereo_is_mixed_to_the_mean(tmp_path: Path) -> None:
    left, right = sine(16_000), sine(16_000, hz=700)
    path = write_wav(tmp_path / "a.wav", np.stack([to_int16(left), to_int16(right)], 1), 16_000)
    np.testing.assert_allclose(load_audio(path), (left + right) / 2, atol=1e-4)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_flac_has_every_sample(tmp_path: Path, rate: int) -> None:
    path = write_encoded(tmp_path / "a.flac", "flac", to_int16(sine(rate, 3.0)), rate)
    np.testing.assert_allclose(load_audio(path)[500:-500], sine(16_000, 3.0)[500:-500], atol=2e-3)
    assert load_audio(path).size == 48_000


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.m4a", "aac", 44_100),
        ("a.ogg", "libopus", 48_000),
        ("a.webm", "libopus", 48_000),
        ("a.mp3", "libmp3lame", 44_100),
    ],
)
def test_lossy_containers(tmp_path: Path, name: str, codec: str, rate: int) -> None:
    path = write_encoded(tmp_path / name, codec, to_int16(sine(rate, 3.0)), rate)
    loaded = load_audio(path)
    assert abs(loaded.size - 48_000) <= 1_024  # codecs pad to whole frames
    second = loaded[16_000:32_000]
    assert np.abs(np.fft.rfft(second)).argmax() == 440  # bins are 1 Hz wide
    assert np.sqrt((second**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.06)


def test_real_recording_has_every_sample() -> None:
    with wave.open(str(JFK), "rb") as file:
        expected = round(file.getnframes() * 16_000 / file.getframerate())
    blocks = list(iter_audio(JFK))
    assert len(blocks) > 10
    assert sum(block.size for block in blocks) == expected
    np.testing.assert_array_equal(np.concatenate(blocks) / np.float32(32768), load_audio(JFK))


@pytest.mark.parametrize("name", ["a:b.wav", "pct%d.wav", "with space é.wav"])
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    assert load_audio(write_wav(tmp_path / name, to_int16(sine(16_000)), 16_000)).size == 16_000


def test_damage_in_the_middle_keeps_the_rest(tmp_path: Path) -> None:
    samples = np.random.default_rng(1).integers(-9_000, 9_000, 48_000).astype(np.int16)
    path = write_encoded(tmp_path / "a.flac", "flac", samples, 16_000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 300] = bytes(300)
    path.write_bytes(data)
    with pytest.warns(UserWarning, match=r"a\.flac is damaged near 1\."):
        loaded = load_audio(path)
    assert 24_000 < loaded.size <= 48_000
    np.testing.assert_array_equal(loaded[:16_000], samples[:16_000].astype(np.float32) / 32768)


def test_a_cut_file_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "cut.wav"
    path.write_bytes(JFK.read_bytes()[:100_001])
    with pytest.warns(UserWarning, match=r"cut\.wav ends after .*; its header says 11\.0 s"):
        cut = load_audio(path)
    np.testing.assert_allclose(cut[:9_000], load_audio(JFK)[:9_000], atol=1e-4)


def _text(path: Path) -> None:
    path.write_text("these are words, not sound\n" * 40)


def _noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(2).bytes(4_000))


def _zero_length(path: Path) -> None:
    write_wav(path, np.zeros(0, np.int16), 16_000)


def _video_only(path: Path) -> None:
    with av.open(str(path), "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def _playlist(path: Path) -> None:
    path.write_text("#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n")


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("missing.wav", lambda path: None, "does not exist"),
        ("folder", Path.mkdir, "is a folder"),
        ("empty.wav", Path.touch, "is an empty file"),
        ("text.wav", _text, "is a text, not audio|is not audio in any known format"),
        ("noise.mp3", _noise, "is not audio in any known format"),
        ("zero.wav", _zero_length, "holds no sound"),
        ("video.avi", _video_only, "has no audio track"),
        ("list.m3u8", _playlist, "is a text, not audio|is not audio in any known format"),
    ],
)
def test_bad_files_give_one_sentence(
    tmp_path: Path, name: str, make: Callable[[Path], None], expected: str
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(AudioError, match=expected) as caught:
        load_audio(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    if path.is_file() and path.stat().st_size:
        with pytest.raises(AudioError, match=expected), open(path, "rb") as file:
            load_audio(file)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_wav(tmp_path / "a.wav", to_int16(sine(16_000)), 16_000)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read anything
    with pytest.raises(AudioError, match="permissions"):
        load_audio(path)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_arrays_at_any_rate(rate: int) -> None:
    waveform = to_waveform(sine(rate, 2.0), rate)
    assert waveform.dtype == np.float32 and waveform.shape == (32_000,)
    np.testing.assert_allclose(waveform[500:-500], sine(16_000, 2.0)[500:-500], atol=1e-3)


@pytest.mark.parametrize(
    "convert",
    [
        to_int16,
        lambda samples: np.round(samples * 2147483647.0).astype(np.int32),
        lambda samples: samples.astype(np.float64),
        lambda samples: np.stack([samples, samples]),
        lambda samples: np.stack([samples, samples], 1),
        lambda samples: samples[None],
        torch.from_numpy,
        lambda samples: torch.from_numpy(to_int16(samples)),
        lambda samples: torch.from_numpy(samples).double().requires_grad_(),
    ],
)
def test_kinds_of_arrays(convert: Callable[[NDArray[np.float32]], Any]) -> None:
    np.testing.assert_allclose(to_waveform(convert(sine(16_000))), sine(16_000), atol=1e-4)


def test_coarse_types() -> None:
    half = to_waveform(torch.from_numpy(sine(16_000)).bfloat16())
    np.testing.assert_allclose(half, sine(16_000), atol=4e-3)
    eight_bit = np.round(sine(16_000) * 127 + 128).astype(np.uint8)
    np.testing.assert_allclose(to_waveform(eight_bit), sine(16_000), atol=1e-2)


def test_stereo_array_is_the_mean() -> None:
    left, right = sine(16_000), sine(16_000, hz=900)
    for stereo in (np.stack([left, right]), np.stack([left, right], 1)):
        np.testing.assert_allclose(to_waveform(stereo), (left + right) / 2, atol=1e-6)


def test_empty_array_stays_empty() -> None:
    assert to_waveform(np.zeros(0, np.float32), 8_000).shape == (0,)


@pytest.mark.parametrize(
    ("samples", "rate", "expected"),
    [
        (np.zeros(10, np.float32), 7_999, "sample_rate must be 8000 to 48000"),
        (np.zeros(10, np.float32), 96_000, "sample_rate must be 8000 to 48000"),
        (np.zeros((2, 2, 2), np.float32), 16_000, r"shape \(2, 2, 2\)"),
        (np.zeros((9, 9), np.float32), 16_000, r"shape \(9, 9\)"),
        (np.float32(1), 16_000, r"shape \(\)"),
        (np.array([0.0, np.nan]), 16_000, "NaN"),
        (np.array(["a"]), 16_000, "not samples"),
        (np.zeros(4, np.complex64), 16_000, "not samples"),
    ],
)
def test_bad_arrays(samples: NDArray[Any], rate: int, expected: str) -> None:
    with pytest.raises(AudioError, match=expected):
        to_waveform(np.asarray(samples), rate)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (5, 2, 3)])
@pytest.mark.parametrize("length", [3, 5, 8])
def test_pad_or_trim_equals_the_reference(shape: tuple[int, ...], length: int) -> None:
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    for axis in range(-len(shape), len(shape)):
        expected = whisper.audio.pad_or_trim(array, length, axis=axis)
        np.testing.assert_array_equal(pad_or_trim(array, length, axis=axis), expected)
        tensor = pad_or_trim(torch.from_numpy(array), length, axis=axis)
        np.testing.assert_array_equal(tensor.numpy(), expected)


def test_pad_or_trim_defaults_to_30_seconds() -> None:
    assert pad_or_trim(np.ones(10, np.float32)).shape == (480_000,)


def test_a_codec_that_nobody_knows_is_named(tmp_path: Path) -> None:
    data = bytearray(JFK.read_bytes())
    data[20:22] = b"\x34\x12"  # the format tag
    path = tmp_path / "odd.wav"
    path.write_bytes(data)
    with pytest.raises(AudioError, match="of a codec that is not known"):
        load_audio(path)
