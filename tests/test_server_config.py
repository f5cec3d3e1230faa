"""The daemon's options of how streams are decoded, from flags to a stream's own."""

from __future__ import annotations

import pytest
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.settings import parse_flags
from whisper_stream.server.wire import Config, Start
from whisper_stream.streamer.config import StreamConfig


def test_flags_reach_the_streams() -> None:
    flags = ["--policy", "either", "--languages", "en, de", "--hotwords", "Nguyen, Škoda"]
    stream = parse_flags(flags).stream_config(Start(), english_only=False)
    assert stream.policy == "either"
    assert stream.languages == ("en", "de")
    assert stream.hotwords == "Nguyen, Škoda"


def test_without_flags_streams_have_their_own_defaults() -> None:
    stream = parse_flags([]).stream_config(Start(), english_only=False)
    default = StreamConfig()
    assert (stream.policy, stream.languages, stream.hotwords) == (
        default.policy,
        default.languages,
        default.hotwords,
    )


def test_what_a_client_asks_for_goes_before_the_flags() -> None:
    config = parse_flags(["--languages", "en,de", "--hotwords", "Nguyen"])
    stream = config.stream_config(Start(languages=("fr",), hotwords="Škoda"), english_only=False)
    assert (stream.languages, stream.hotwords) == (("fr",), "Škoda")
    changed = config.changed(stream, Config(languages=(), hotwords=""), english_only=False)
    assert (changed.languages, changed.hotwords) == ((), "")
    assert config.changed(stream, Config(prompt="x"), english_only=False).hotwords == "Škoda"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--policy", "guess"], "--policy: invalid choice: 'guess'"),
        (["--languages", "en,klingon"], "--languages has 'klingon'"),
        (["--hotwords"], "--hotwords: expected one argument"),
        (["--update-interval", "0"], "--update-interval must be above 0"),
    ],
)
def test_bad_flags_are_told_in_one_line(flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        parse_flags(flags)
    assert "\n" not in str(caught.value)


def test_options_made_without_flags_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="--policy must be one of local-agreement"):
        ServerConfig(policy="guess")  # type: ignore[arg-type]
