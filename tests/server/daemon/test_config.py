"""The daemon's options of how streams are decoded, from flags to a stream's own."""

from __future__ import annotations

import dataclasses

import pytest
from whisper_stream.clients.cli import main as cli
from whisper_stream.clients.cli.args import MOST_THREADS as MOST_OF_CLIENTS
from whisper_stream.model.cpu.runtime import MOST_THREADS
from whisper_stream.server.config import ServerConfig, read_settings
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.protocol.messages import Start
from whisper_stream.streamer.config import StreamConfig


def test_flags_reach_the_streams() -> None:
    flags = ["--policy", "either", "--languages", "en, de", "--hotwords", "Nguyen, Škoda"]
    stream = read_settings(flags, {}).config.stream_config(Start(), english_only=False)
    assert stream.policy == "either"
    assert stream.languages == ("en", "de")
    assert stream.hotwords == "Nguyen, Škoda"


def test_without_flags_streams_have_their_own_defaults() -> None:
    stream = read_settings([], {}).config.stream_config(Start(), english_only=False)
    default = StreamConfig()
    assert (stream.policy, stream.languages, stream.hotwords) == (
        default.policy,
        default.languages,
        default.hotwords,
    )


def test_what_a_client_asks_for_goes_before_the_flags() -> None:
    config = read_settings(["--languages", "en,de", "--hotwords", "Nguyen"], {}).config
    stream = config.stream_config(Start(languages=("fr",), hotwords="Škoda"), english_only=False)
    assert (stream.languages, stream.hotwords) == (("fr",), "Škoda")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--policy", "guess"], "--policy: invalid choice: 'guess'"),
        (["--languages", "en,klingon"], "--languages has 'klingon'"),
        (["--hotwords"], "--hotwords: expected one argument"),
        (["--update-interval", "0"], "--update-interval must be above 0"),
        (["--threads", "100000"], "--threads must be from 0 to 512, not 100000"),
        (["--endpoint-silence", "50"], "--endpoint-silence must be from 0.1 to 10, not 50"),
        (["--hotwords", "x" * 4001], "--hotwords may have 4000 characters, not 4001"),
        (["--allowed-origins", "foo bar"], "--allowed-origins has 'foo bar'; write each like"),
        (["--allowed-origins", "https://a.org,b.org"], "--allowed-origins has 'b.org'"),
        (["--allowed-origins", "https://a.org/page"], "--allowed-origins has 'https://a.org/page'"),
        (["--journal", ""], "--journal is empty"),
    ],
)
def test_bad_flags_are_told_in_one_line(flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        read_settings(flags, {})
    assert "\n" not in str(caught.value)


def test_options_made_without_flags_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="--policy must be one of local-agreement"):
        ServerConfig(policy="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_are_finite(text: str) -> None:
    names = [each.name for each in dataclasses.fields(ServerConfig) if each.type == "float"]
    assert "max_delay" in names and "drain_seconds" in names
    for name in names:
        flag = "--" + name.replace("_", "-")
        with pytest.raises(ConfigError, match=f"{flag} must be a finite number, not {text}"):
            read_settings([f"{flag}={text}"], {})


def test_origins_as_browsers_send_them_are_taken() -> None:
    origins = "https://a.org, http://[::1]:8080,chrome-extension://abc,null,*"
    assert read_settings(["--allowed-origins", origins], {}).config.allowed_origins == origins


def test_clients_bound_threads_as_the_daemon_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert MOST_OF_CLIENTS == MOST_THREADS
    for argv in (["doctor"], ["speech.wav"], ["load", "speech.wav"], ["serve"]):
        assert cli.main([*argv, "--threads", "100000"]) == 2
        error = capsys.readouterr().err
        assert "--threads" in error and "to 512" in error and error.count("\n") == 1
