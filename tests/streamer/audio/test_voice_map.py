"""The map of voiced stretches, against a set of samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.audio.voice_map import VoiceMap

STRETCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12)


@given(STRETCHES, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_it_is_a_set_of_samples(
    stretches: list[tuple[int, int]], start: int, end: int, before: int
) -> None:
    voice, voiced, at = VoiceMap(), set[int](), 0
    for pause, length in stretches:
        at += pause
        voice.add(at, at + length)
        voiced |= set(range(at, at + length))
        at += length
    assert voice.count(start, end) == len(voiced & set(range(start, end)))
    assert voice.find_onset(start) == min((s for s in voiced if s >= start), default=None)
    voice.forget(before)
    kept = max(start, before)
    assert voice.count(kept, end) == len(voiced & set(range(kept, end)))
