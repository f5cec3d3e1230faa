"""The daemon's options: flags above environment above file, and from there to the streams."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from whisper_stream.clients.cli import main as cli
from whisper_stream.server.config import ServerConfig, read_settings, to_toml
from whisper_stream.server.daemon.main import main
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
    for argv in (["doctor"], ["speech.wav"], ["load", "speech.wav"], ["serve"]):
        assert cli.main([*argv, "--threads", "100000"]) == 2
        error = capsys.readouterr().err
        assert "--threads" in error and "to 512" in error and error.count("\n") == 1


def test_flags_go_before_variables_and_variables_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('port = 1\nmax_streams = 1\nmodel = "one"\nself_signed = true\nmax_load = 1\n')
    environment = {
        "WHISPER_STREAM_MAX_STREAMS": "2",
        "WHISPER_STREAM_MODEL": "two",
        "WHISPER_STREAM_API_KEYS": "anna:0123456789abcdef",
        "WHISPER_STREAM_KEY": "of a client",
        "WHISPER_STREAM_SERVICE_PORT_HTTP": "of an orchestrator",
        "PORT": "7",
    }
    config, print_only = read_settings(["--config", str(file), "--model", "three"], environment)
    assert (config.port, config.max_streams, config.model) == (1, 2, "three")
    assert config.self_signed and config.max_load == 1.0 and config.api_keys is None
    assert not print_only
    from_variable = {"WHISPER_STREAM_CONFIG": str(file), "WHISPER_STREAM_SELF_SIGNED": "no"}
    config = read_settings([], from_variable).config
    assert config.model == "one" and not config.self_signed


def test_what_is_printed_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--port", "7", "--language", "de", "--max-load", "0.5", "--print-config"]
    assert main(flags) == 0
    text = capsys.readouterr().out
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    again = read_settings(["--config", str(tmp_path / "c.toml")], {}).config
    assert again == ServerConfig(port=7, language="de", max_load=0.5)
    assert to_toml(again) == text
    kept = {option.name for option in dataclasses.fields(ServerConfig)} - set(tomllib.loads(text))
    assert {"announce", "exit_with_stdin", "journal", "api_keys"} <= kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 1", "no option 'colour'; see --print-config"),
        ("max-streams = 1", r"no option 'max-streams'; did you mean max_streams\?"),
        ("max_delay = nan", "--max-delay must be a finite number, not nan"),
        (f"max_delay = 1{'0' * 400}", "a number is too large"),
        ("announce = true", "no option 'announce'"),
        ('port = "x"', "port must be a whole number"),
        ("port = true", "port must be a whole number"),
        ("port = 1.5", "port must be a whole number"),
        ("model = 3", "model must be a text"),
        ('log_level = "loud"', "log_level must be one of debug, info"),
        ("port = 70000", "--port must be from 0 to 65535"),
        ("port = ", "is not TOML"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_settings(["--config", str(tmp_path / "c.toml")], {})


def test_a_wrong_variable_is_named() -> None:
    for name, text in (("PORT", "x"), ("SELF_SIGNED", "perhaps"), ("LOG_LEVEL", "loud")):
        with pytest.raises(ConfigError, match=f"WHISPER_STREAM_{name}"):
            read_settings([], {f"WHISPER_STREAM_{name}": text})
    with pytest.raises(ConfigError, match="--resume-seconds must be a finite number"):
        read_settings([], {"WHISPER_STREAM_RESUME_SECONDS": "inf"})
    with pytest.raises(ConfigError, match="STREEMS; did you mean WHISPER_STREAM_MAX_STREAMS"):
        read_settings([], {"WHISPER_STREAM_MAX_STREEMS": "3"})
    with pytest.raises(ConfigError, match="WHISPER_STREAM_ANNOUNCE; unset it"):
        read_settings([], {"WHISPER_STREAM_ANNOUNCE": "1"})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(["--config", "no-such-file"], {})


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\x80\x02\xff")
    with pytest.raises(ConfigError, match="c.toml is no text in UTF-8; name a TOML file"):
        read_settings(["--config", str(tmp_path / "c.toml")], {})
