"""How fast audio comes and answers go, without a clock."""

from __future__ import annotations

import pytest
from whisper_stream.server.metrics import RealTimeShare, Turnarounds


def test_turnarounds_are_averaged_since_the_last_look() -> None:
    turnarounds = Turnarounds()
    assert turnarounds.take() is None
    turnarounds.add(0.5)
    turnarounds.add(1.5)
    assert turnarounds.take() == 1.0
    assert turnarounds.take() is None


def test_speech_is_live_and_what_is_played_faster_is_not() -> None:
    """A stream at nine times the pace of speech beside one at its pace: two parts in ten are live."""
    paces = RealTimeShare()
    shares = [paces.live_share(float(s), {"a": 1.0 * s, "b": 9.0 * s}) for s in range(30)]
    assert shares[0] == 1.0
    assert shares[-1] == pytest.approx(0.2)


def test_streams_that_come_and_go_and_are_silent() -> None:
    paces = RealTimeShare()
    assert paces.live_share(0.0, {}) == 1.0
    assert paces.live_share(1.0, {"a": 100.0}) == 1.0  # it may have had that since yesterday
    assert paces.live_share(2.0, {"a": 101.0, "b": 50.0}) == 1.0
    assert paces.live_share(3.0, {"b": 51.0}) == 1.0
