"""Samples of another kind than declared are doubted once; speech, noise, music and silence never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.media.samples import SampleCheck
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.events import StreamWarning

from ...helpers.server_rig import daemon

Samples = NDArray[np.float32]
CLIPS = sorted((Path(__file__).parents[2] / "data").glob("en-*.*a*")) + [
    Path(__file__).parents[2] / "data" / name
    for name in ("de-read-portal.flac", "noise-dog.flac", "zh-read-jiaoyi.flac")
]
AS_WHOLE = "samples do not look like f32le: is the encoding s16le?"
AS_FLOAT = "samples do not look like s16le: is the encoding f32le?"
UNSCALED = "samples of f32le lie far outside -1..1 and are clipped: divide them by 32768"


def doubts(encoding: str, samples: NDArray[Any], step: int = 1_601) -> list[str]:
    check = SampleCheck(encoding)
    found = (check.look(samples[at : at + step]) for at in range(0, len(samples), step))
    return [doubt for doubt in found if doubt is not None]


def whole(audio: Samples) -> NDArray[np.int16]:
    return np.clip(np.rint(audio * 32767), -32768, 32767).astype("<i2")


@pytest.mark.parametrize("clip", CLIPS, ids=lambda path: path.stem)
@pytest.mark.parametrize("level", [1.0, 0.1])
def test_recordings_are_not_doubted(clip: Path, level: float) -> None:
    audio = np.tile(load_audio(clip), 3) * np.float32(level)
    assert doubts("s16le", whole(audio)) == doubts("f32le", audio) == []
    assert doubts("s16le", np.repeat(whole(audio), 2)) == []  # two channels


def test_other_sounds_are_not_doubted(jfk: Samples) -> None:
    random = np.random.default_rng(0)
    time = np.arange(160_000) / 16_000
    sounds = {
        "white": random.uniform(-1, 1, 160_000),
        "hiss": random.normal(0, 1e-4, 160_000),
        "silence": np.zeros(160_000),
        "square": 0.46 * np.sign(np.sin(2 * np.pi * 440 * time)),
        "saw": (220 * time % 1) * 2 - 1,
        "sine": 0.5 * np.sin(2 * np.pi * 440 * time),
        "constant": np.full(160_000, 0.45),
        "clipped": np.clip(jfk * 30, -0.46, 0.46),
        "loud": 3 * np.sin(2 * np.pi * 440 * time),  # over full scale, as floats may be
        "fading": 0.5 * np.exp(-time * 12),  # down to levels below any float's smallest normal
    }
    for name, sound in sounds.items():
        audio = sound.astype(np.float32)
        assert doubts("s16le", whole(audio)) == doubts("f32le", audio) == [], name


@pytest.mark.parametrize("step", [1, 160, 1_601, 1_000_000])
@pytest.mark.parametrize("level", [1.0, 0.1])
def test_each_mistake_is_told_once(jfk: Samples, level: float, step: int) -> None:
    audio = (jfk if step > 1 else jfk[:32_000]) * np.float32(level)
    integers = whole(audio)
    assert doubts("f32le", integers.view("<f4"), step) == [AS_WHOLE]
    assert doubts("s16le", audio.astype("<f4").view("<i2"), step) == [AS_FLOAT]
    assert doubts("s16le", (integers / np.float32(32768)).view("<i2"), step) == [AS_FLOAT]
    assert doubts("f32le", integers.astype("<f4"), step) == [UNSCALED]


def test_a_few_bad_floats_are_no_reason(jfk: Samples) -> None:
    audio = jfk.copy()
    audio[::1_000] = np.nan
    assert doubts("f32le", audio) == []


def test_other_encodings_are_not_looked_at() -> None:
    assert doubts("mulaw", np.full(100_000, 0xFF, np.uint8)) == []


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_what_is_misread_stays_a_sound(jfk: Samples, rate: int, channels: int) -> None:
    """Whatever the bytes are: every sample that comes out is a level, and the warning comes once."""
    reader = PcmIngest("f32le", rate, channels)
    data = np.concatenate([whole(jfk).view("<f4"), np.array([np.nan, np.inf], "<f4")]).tobytes()
    out = [reader.push(data[at : at + 5_003]) for at in range(0, len(data), 5_003)]
    heard = np.concatenate([*out, reader.finish()])
    assert np.isfinite(heard).all() and np.abs(heard).max() < 2
    assert reader.take_warning() == StreamWarning(code="encoding", message=AS_WHOLE)
    assert reader.take_warning() is None


@pytest.mark.parametrize(("declared", "text"), [("f32le", AS_WHOLE), ("s16le", AS_FLOAT)])
def test_the_client_is_told(
    jfk: Samples, declared: wire.Encoding, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = whole(jfk).tobytes() if declared == "f32le" else jfk.astype("<f4").tobytes()
    with daemon() as running, running.connect() as peer:
        peer.send(wire.Start(encoding=declared))
        for at in range(0, len(sent), 6_400):
            peer.audio(sent[at : at + 6_400])
        peer.send(wire.Eos())
        messages, code, _ = peer.rest()
    told = [m.message for m in messages if isinstance(m, wire.Warning) and m.code == "encoding"]
    assert told == [text] and code == 1000
    done = messages[-1]
    assert isinstance(done, wire.Done) and done.samples == len(sent) // (
        4 if declared == "f32le" else 2
    )
    assert "look like" not in caplog.text
