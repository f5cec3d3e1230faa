"""Options of a stream that make no sense are refused by name."""

from __future__ import annotations

import pytest
from whisper_stream.streamer.config import StreamConfig


@pytest.mark.parametrize(
    "options",
    [
        {"agreement": 1},
        {"update_interval": 0.0},
        {"endpoint_silence": -1.0},
        {"soft_window": 20.0, "max_window": 10.0},
        {"max_window": 31.0},
        {"buffer_seconds": 20.0},
        {"preroll": -0.1},
        {"context_seconds": 58.0},
    ],
)
def test_senseless_options_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(reversed(options))):
        StreamConfig(**options)  # type: ignore[arg-type]


def test_unknown_languages_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="languages has 'klingon'"):
        StreamConfig(languages=("en", "klingon"))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        ValueError, match="policy must be one of local-agreement, align-att, either"
    ):
        StreamConfig(policy="guess")  # type: ignore[arg-type]


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ValueError, match="detector must be one of webrtc, silero, not 'ear'"):
        StreamConfig(detector="ear")  # type: ignore[arg-type]
