"""Error lines say what was wrong and what to do about it, once."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import pytest
from whisper_stream import WhisperStreamError
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.sdk.embed import explain_exit
from whisper_stream.server.config import ServerConfig, read_settings
from whisper_stream.server.errors import ConfigError, JournalError, ListenError
from whisper_stream.server.protocol.errors import SERVE_HELP
from whisper_stream.server.stream.journal import Journal


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "choose another --port"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "0.0.0.0 for all"),
        (PermissionError(errno.EACCES, "Permission denied"), "--port above 1023"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "--host must be"),
        (OSError("odd"), "another --host"),
    ],
)
def test_an_address_that_cannot_be_listened_on(error: OSError, advice: str) -> None:
    text = str(ListenError("1.2.3.4", 80, error))
    reason = error.strerror or "odd"
    assert text.startswith(f"cannot listen on 1.2.3.4 port 80 ({reason}); ")
    assert advice in text


def test_a_journal_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, whatever its name may say" * 50)
    for path, advice in (
        (tmp_path, "(it is a folder); name a file in it"),
        (tmp_path / "no" / "x.db", f"(there is no folder {tmp_path / 'no'}); make it, or"),
        (tmp_path / "text", "move it away or name another file"),
    ):
        with pytest.raises(JournalError, match=re.escape(advice)) as caught:
            Journal(path)
        assert str(caught.value).count(str(path)) <= 2 and "[Errno" not in str(caught.value)


@pytest.mark.parametrize("there", [1, 0])
def test_a_journal_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    path = tmp_path / "x.db"
    if there:
        path.write_text("no database" * 100)
    else:
        monkeypatch.setattr(os, "open", _denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(JournalError, match="this user may not write"):
        Journal(path)


def _denied(*_: object) -> int:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_languages_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="--language de is not among --languages en,fr; add it"):
        ServerConfig(language="de", languages="en,fr")
    assert ServerConfig(language="de", languages="en, de").allowed_languages == ("en", "de")


def test_flags_point_at_the_help_of_their_own_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=SERVE_HELP) as caught:
        read_settings(["--policy", "nonsense"], {})
    said = explain_exit([f"whisper-stream: error: {caught.value}"], 2)
    assert "invalid choice: 'nonsense'" in said and "serve" not in said
    for argv, words in (
        (
            ["bench", "x.wav", "--policy", "nonsense"],
            "--policy nonsense; write it as --set policy=…",
        ),
        (["bench", "x.wav", "--model", "nope"], "folder; see `whisper-stream bench --help`"),
        (
            ["transcribe", "x.wav", "--model", "nope"],
            "folder; see `whisper-stream transcribe --help`",
        ),
    ):
        try:
            code = main(argv)
        except WhisperStreamError as error:
            code, said = 2, str(error)
        else:
            said = capsys.readouterr().err
        assert code == 2 and words in said and ".;" not in said, said
