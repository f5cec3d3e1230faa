"""Audio files as PCM: exact sample counts, any format, and one clear line for what is no audio."""

from __future__ import annotations

import asyncio
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from av.audio.stream import AudioStream
from numpy.typing import NDArray
from whisper_stream.clients.errors import SourceError
from whisper_stream.clients.sources.files import CHUNK_SAMPLES, SAMPLE_RATE, AudioSource, Pacer

SPEECH = Path(__file__).parents[2] / "data" / "en-speech-jfk.wav"


def write_wav(path: Path, samples: NDArray[np.int16], rate: int) -> Path:
    """``samples`` is [frames] or [frames, channels]."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def noise(frames: int) -> NDArray[np.int16]:
    return np.random.default_rng(7).integers(-8000, 8000, frames).astype(np.int16)


def tone(rate: int, seconds: float) -> NDArray[np.int16]:
    times = np.arange(round(rate * seconds)) / rate
    return (10_000 * np.sin(2 * np.pi * 440 * times)).astype(np.int16)


def encode(path: Path, samples: NDArray[np.int16], codec: str, rate: int) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, AudioStream)
        for at in range(0, len(samples), 4096):
            frame = av.AudioFrame.from_ndarray(samples[None, at : at + 4096], "s16", "mono")
            frame.sample_rate = rate
            frame.pts = at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def pcm(path: Path) -> NDArray[np.int16]:
    return np.frombuffer(b"".join(AudioSource(path).chunks()), np.int16)


def test_16_khz_mono_passes_unchanged(tmp_path: Path) -> None:
    samples = noise(33_333)
    path = write_wav(tmp_path / "a.wav", samples, 16_000)
    assert AudioSource(path).check() == pytest.approx(33_333 / 16_000)
    np.testing.assert_array_equal(pcm(path), samples)


def test_lossless_container_passes_unchanged(tmp_path: Path) -> None:
    samples = noise(50_001)
    np.testing.assert_array_equal(
        pcm(encode(tmp_path / "a.flac", samples, "flac", 16_000)), samples
    )


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("frames", [997, 100_001])
def test_resampling_keeps_the_duration_to_the_sample(
    tmp_path: Path, rate: int, frames: int
) -> None:
    path = write_wav(tmp_path / "a.wav", noise(frames), rate)
    assert abs(len(pcm(path)) - frames * 16_000 / rate) <= 1


def test_resampling_keeps_the_signal_and_its_phase(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tone(44_100, 1.0), 44_100)
    middle = slice(1_000, 15_000)  # away from the filter's edges
    difference = pcm(path)[middle].astype(int) - tone(16_000, 1.0)[middle]
    assert np.abs(difference).max() < 30  # of 10,000


def test_stereo_becomes_the_mean_of_its_channels(tmp_path: Path) -> None:
    left, right = noise(8_000), tone(16_000, 0.5)
    path = write_wav(tmp_path / "a.wav", np.stack([left, right], axis=1), 16_000)
    mean = (left.astype(int) + right) / 2
    assert np.abs(pcm(path) - mean).max() <= 1


def test_only_the_last_chunk_is_short() -> None:
    sizes = [len(chunk) for chunk in AudioSource(SPEECH).chunks()]
    assert sizes == [2 * CHUNK_SAMPLES] * 110
    sizes = [len(chunk) for chunk in AudioSource(SPEECH).chunks(70_001)]
    assert sizes == [140_002, 140_002, 2 * 176_000 - 280_004]


def test_streaming_in_a_thread_gives_the_same_chunks() -> None:
    async def collect() -> list[bytes]:
        return [chunk async for chunk in AudioSource(SPEECH).stream()]

    assert asyncio.run(collect()) == list(AudioSource(SPEECH).chunks())


def test_a_cut_file_plays_to_the_cut(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", noise(16_000), 16_000)
    path.write_bytes(path.read_bytes()[: 44 + 2 * 5_000 + 1])
    np.testing.assert_array_equal(pcm(path), noise(16_000)[:5_000])


def test_a_name_like_an_address_stays_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_wav(Path("http:a.wav"), noise(100), 16_000)
    assert len(pcm(path)) == 100


def bad_file(folder: Path, kind: str) -> Path:
    path = folder / "bad.wav"
    match kind:
        case "directory":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("To be, or not to be.\n" * 300)
        case "zeros":
            path.write_bytes(bytes(5_000))
        case "no samples":
            write_wav(path, noise(0), 16_000)
        case "not regular":
            return Path("/dev/null")
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "does not exist"),
        ("directory", "is a folder"),
        ("empty", "is an empty file"),
        ("text", "is a text, not audio"),
        ("zeros", "is not audio in any known format"),
        ("no samples", "holds no sound"),
        ("not regular", "is not a regular file"),
    ],
)
def test_what_is_no_audio_is_named(tmp_path: Path, kind: str, reason: str) -> None:
    path = bad_file(tmp_path, kind)
    with pytest.raises(SourceError) as caught:
        AudioSource(path).check()
    text = str(caught.value)
    assert text.startswith(f"{path} ")
    assert reason in text
    assert "\n" not in text


def test_video_without_sound_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), "rgb24")
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(SourceError, match="has no audio track"):
        AudioSource(path).check()


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_pace_does_not_drift(speed: float) -> None:
    clock = FakeClock()
    pacer = Pacer(speed, clock)
    assert pacer.delay(CHUNK_SAMPLES) == pytest.approx(0.1 / speed)
    for chunk in range(1, 36_001):  # an hour; each wait ends a little late
        clock.now += pacer.delay(chunk * CHUNK_SAMPLES) + 0.003 / speed
    due = 36_000 * CHUNK_SAMPLES / SAMPLE_RATE / speed
    assert clock.now - 100.0 == pytest.approx(due + 0.003 / speed)


def test_pace_catches_up_after_a_stall() -> None:
    clock = FakeClock()
    pacer = Pacer(1.0, clock)
    pacer.delay(CHUNK_SAMPLES)
    clock.now += 1.0
    assert [pacer.delay(n * CHUNK_SAMPLES) for n in (1, 10)] == [0.0, pytest.approx(0.0)]
    assert pacer.delay(11 * CHUNK_SAMPLES) == pytest.approx(0.1)


def test_speed_0_never_waits() -> None:
    pacer = Pacer(0.0, FakeClock())
    assert pacer.delay(10**9) == 0.0
