"""A daemon that wants a key, as the SDK and the commands meet it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from whisper_stream.clients import sync
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.errors import ConnectError, UsageError
from whisper_stream.server.protocol import messages as wire

from ...helpers.relay import relay
from ...helpers.server_rig import Daemon, ScriptedEngine, daemon, speech
from ...helpers.texts import SPEECH

KEY = "anna-has-this-key"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    keys = tmp_path / "keys"
    keys.write_text(f"anna:{KEY}\n")
    with daemon(ScriptedEngine(word_text=lambda job: " hello"), api_keys=str(keys)) as started:
        yield started


def test_a_key_opens_a_stream_also_after_a_lost_connection(running: Daemon) -> None:
    with relay(running.port) as between:
        with sync.connect(f"ws://127.0.0.1:{between.port}", key=KEY) as stream:
            stream.send(speech(0.5))
            events = iter(stream)
            first = next(event for event in events if isinstance(event, wire.Commit))
            assert first.text == " hello"
            between.cut(running.port)
            stream.send(speech(0.5))
            stream.end()
            rest = list(events)
    assert any(isinstance(event, wire.Commit) for event in rest)
    assert isinstance(rest[-1], wire.Done)


@pytest.mark.parametrize(
    ("key", "words"), [(None, "wants a key"), ("anna-has-that-key", "does not know this key")]
)
def test_a_sentence_says_what_is_wrong(running: Daemon, key: str | None, words: str) -> None:
    with pytest.raises(ConnectError, match=words) as refused:
        sync.transcribe_file(SPEECH, running.url, key=key)
    assert refused.value.status == 401 and "anna" not in str(refused.value)


@pytest.mark.parametrize("key", ["", "a b\r\nX: y", "ключ", " padded "])
def test_what_can_be_no_key(running: Daemon, key: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        with sync.connect(running.url, key=key):
            pass


def test_the_commands_take_it_from_a_flag_or_from_the_environment(
    running: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(SPEECH), "--speed", "0"]
    there = [*arguments, "--server", running.url]
    assert main([*there, "--key", KEY]) == 0
    assert "hello" in capsys.readouterr().out
    assert main(there) == 1
    assert "give one with --key" in capsys.readouterr().err
    monkeypatch.setenv("WHISPER_STREAM_KEY", KEY)
    assert main(there) == 0
    assert main([*arguments, "--key", KEY]) == 2
    assert "--key is for a daemon that runs already" in capsys.readouterr().err
