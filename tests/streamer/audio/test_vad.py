"""The speech gate's hysteresis on scripted decisions, and the detectors on recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import webrtcvad
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.streamer.audio import vad
from whisper_stream.streamer.audio.vad import (
    FRAME_SAMPLES,
    GateConfig,
    GateStart,
    GateStop,
    SileroDetector,
    SpeechDetector,
    SpeechGate,
    WebRtcDetector,
    make_detector,
)
from whisper_stream.streamer.errors import DetectorError

from ...helpers.scripted import LevelDetector

DATA = Path(__file__).parents[2] / "data"
Samples = NDArray[np.float32]
Changes = list[GateStart | GateStop]


def frames(pattern: str) -> Samples:
    """One 20 ms frame a character: ``x`` is voiced, ``.`` is not."""
    return np.repeat(np.array([c == "x" for c in pattern], np.float32), FRAME_SAMPLES)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_many_frames_at_once_are_judged_as_one_by_one(sizes: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    levels = 10.0 ** chance.uniform(-4, 0, sum(sizes))
    noise = chance.normal(0.0, 1.0, (sum(sizes), FRAME_SAMPLES))
    heard = (noise * levels[:, np.newaxis]).astype(np.float32)
    single, several = WebRtcDetector(), WebRtcDetector()
    one_by_one = [single.is_speech(frame) for frame in heard]
    at_once: list[bool] = []
    for size in sizes:
        at_once += several.are_speech(heard[len(at_once) : len(at_once) + size])
    assert at_once == one_by_one


def test_the_floor_is_that_of_the_last_five_seconds() -> None:
    """Against the definition: the level that a tenth of the last 250 frames stay below."""
    chance = np.random.default_rng(3)
    heard = (chance.normal(0.0, 1.0, (600, FRAME_SAMPLES)) * 0.03).astype(np.float32)
    heard *= 10.0 ** chance.uniform(-1, 1, (600, 1)).astype(np.float32)
    detector, raw = WebRtcDetector(), webrtcvad.Vad(2)
    levels: list[float] = []
    for frame in heard:
        pcm = (np.clip(frame, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
        voiced = raw.is_speech(pcm, 16_000)
        levels = [
            *levels,
            10.0 * float(np.log10(np.mean(np.square(frame, dtype=np.float64)) + 1e-10)),
        ]
        known = sorted(levels[-250:])
        above = len(levels) < 250 or levels[-1] > known[25] + 4.0
        assert detector.is_speech(frame) == (voiced and levels[-1] >= -62.0 and above)


def push(gate: SpeechGate, *pieces: Samples) -> Changes:
    """Give ``pieces`` to a fresh gate, and move it over each whole frame as soon as it is there."""
    changes: Changes = []
    heard = passed = 0
    for piece in pieces:
        gate.listen(piece)
        heard += len(piece)
        changes += gate.advance(heard // FRAME_SAMPLES - passed)
        passed = heard // FRAME_SAMPLES
    return changes


def gate_changes(pattern: str, config: GateConfig | None = None) -> list[tuple[str, int]]:
    """(kind, frame) of every change."""
    changes = push(SpeechGate(LevelDetector(), config), frames(pattern))
    return [
        ("start" if isinstance(c, GateStart) else "stop", c.sample // FRAME_SAMPLES)
        for c in changes
    ]


SMALL = GateConfig(window=4, start_voiced=2, hangover=3)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("....", []),
        ("..x.....x...", []),  # clicks further apart than the window
        ("..xx", [("start", 2)]),
        ("..x..x", [("start", 2)]),  # the first voiced frame of the window is the start
        ("..xx..x..x..", [("start", 2)]),  # pauses shorter than the hangover
        ("..xx...", [("start", 2), ("stop", 4)]),  # the stop is where voice was last heard
        ("..xx....x.", [("start", 2), ("stop", 4)]),  # nothing left over from before the stop
        ("xx...xx...", [("start", 0), ("stop", 2), ("start", 5), ("stop", 7)]),
    ],
)
def test_hysteresis(pattern: str, expected: list[tuple[str, int]]) -> None:
    assert gate_changes(pattern, SMALL) == expected


def test_the_defaults_ignore_a_click_and_bridge_a_short_pause() -> None:
    assert gate_changes("." * 20 + "xx" + "." * 20) == []
    assert gate_changes("." * 20 + "x" * 10 + "." * 8 + "x" * 10) == [("start", 20)]
    assert gate_changes("." * 20 + "x" * 10 + "." * 50) == [("start", 20), ("stop", 30)]


@given(
    pattern=st.text("x.", max_size=80),
    cuts=st.lists(st.integers(0, 80 * FRAME_SAMPLES), max_size=20),
)
def test_chunking_does_not_matter(pattern: str, cuts: list[int]) -> None:
    audio = frames(pattern)
    gate = SpeechGate(LevelDetector(), SMALL)
    changes = push(gate, *np.split(audio, sorted(min(cut, len(audio)) for cut in cuts)))
    whole = SpeechGate(LevelDetector(), SMALL)
    assert changes == push(whole, audio)
    assert (gate.speaking, gate.last_voiced) == (whole.speaking, whole.last_voiced)


@given(pattern=st.text("x.", max_size=120))
def test_starts_and_stops_alternate_in_order(pattern: str) -> None:
    gate = SpeechGate(LevelDetector(), SMALL)
    changes = push(gate, frames(pattern))
    kinds = [type(change) for change in changes]
    assert kinds == [GateStart, GateStop] * (len(kinds) // 2) + [GateStart] * (len(kinds) % 2)
    samples = [change.sample for change in changes]
    assert samples == sorted(samples)
    assert gate.speaking == (len(kinds) % 2 == 1)


@pytest.mark.parametrize(
    "options", [{"start_voiced": 0}, {"window": 3, "start_voiced": 4}, {"hangover": 0}]
)
def test_senseless_gates_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        GateConfig(**options)


# -- Recordings


def spoken(audio: Samples) -> list[tuple[float, float]]:
    """(start, stop) in seconds of every stretch of speech; silence follows the recording."""
    padded = np.concatenate((audio, np.zeros(16_000, np.float32)))
    changes = push(SpeechGate(WebRtcDetector()), padded)
    seconds = [change.sample / 16_000 for change in changes]
    return list(zip(seconds[::2], seconds[1::2], strict=True))


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_silence_never_starts(level: float) -> None:
    noise = np.random.default_rng(0).normal(0.0, 1.0, 10 * 16_000).astype(np.float32)
    assert spoken(noise * level) == []


def test_speech_starts_and_stops_near_the_words() -> None:
    """The phrases of the address, from a listener's labels."""
    stretches = spoken(load_audio(DATA / "en-speech-jfk.wav"))
    phrases = [(0.3, 2.2), (3.3, 4.3), (5.4, 7.6), (8.2, 10.5)]
    for first, last in phrases:
        assert any(start <= first + 0.3 and stop >= last - 0.3 for start, stop in stretches)
    assert stretches[0][0] <= 0.5
    assert 10.2 <= stretches[-1][1] <= 11.0
    pauses = [(4.6, 5.3), (7.7, 8.1)]  # not a word in them
    for first, last in pauses:
        assert any(
            a_stop <= first + 0.3 and b_start >= last - 0.3
            for (_, a_stop), (b_start, _) in zip(stretches, stretches[1:], strict=False)
        )


@pytest.mark.parametrize("clip", ["en-read-1272-quilter.flac", "de-read-portal.flac"])
def test_quiet_recordings_are_heard(clip: str) -> None:
    audio = load_audio(DATA / clip)
    loud, quiet = spoken(audio), spoken(audio * 0.1)
    assert sum(stop - start for start, stop in loud) > 0.6 * len(audio) / 16_000
    assert abs(loud[0][0] - quiet[0][0]) < 0.3
    assert abs(loud[-1][1] - quiet[-1][1]) < 0.4


# -- Silero


def share_of_speech(detector: SpeechDetector, audio: Samples) -> float:
    whole = audio[: len(audio) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return float(np.mean([detector.is_speech(frame) for frame in whole]))


def test_silero_hears_speech_and_not_noise(jfk: Samples) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(jfk)).astype(np.float32)
    assert share_of_speech(SileroDetector(), jfk) > 0.5
    assert share_of_speech(SileroDetector(), noise) == 0.0


def test_streams_that_share_silero_do_not_hear_each_other(jfk: Samples) -> None:
    audio = jfk[: 3 * 16_000]
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(audio)).astype(np.float32)
    alone = SileroDetector()
    places = range(0, len(audio), FRAME_SAMPLES)
    expected = [alone.is_speech(audio[at : at + FRAME_SAMPLES]) for at in places]
    one, other = SileroDetector(), SileroDetector()
    heard = []
    for at in places:
        heard.append(one.is_speech(audio[at : at + FRAME_SAMPLES]))
        other.is_speech(noise[at : at + FRAME_SAMPLES])
    assert heard == expected
    assert True in heard


def test_without_its_package_silero_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vad, "find_spec", lambda name: None)
    with pytest.raises(DetectorError, match=r"pip install 'whisper-stream\[silero\]'"):
        make_detector("silero")


def test_detectors_go_by_name() -> None:
    assert isinstance(make_detector("webrtc"), WebRtcDetector)
    assert isinstance(make_detector("silero"), SileroDetector)
