"""Flags above environment above file, and nothing misspelt is passed over."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from whisper_stream.server.config import ServerConfig, read_settings, to_toml
from whisper_stream.server.daemon.main import main
from whisper_stream.server.errors import ConfigError


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
