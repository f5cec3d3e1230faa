"""The transcript kept from messages, and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_stream.clients.errors import OutputError
from whisper_stream.clients.sdk.transcript import LiveTranscript, OutputFile
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, segment, word

SEGMENTS = (segment(0, WORDS[:2]), segment(1, WORDS[2:]))


def test_transcript_moves_words_from_tail_to_open_to_closed() -> None:
    transcript = LiveTranscript()
    transcript.add(wire.Language(language="de", probability=0.9, time=0.0))
    transcript.add(wire.Partial(text=" Ask nut", words=(WORDS[0], word(" nut", 0.4, 0.8))))
    assert [each.text for each in transcript.tail] == [" Ask", " nut"]
    assert transcript.complete() == ()
    transcript.add(wire.Commit(text=" Ask not what", words=WORDS))
    assert transcript.tail == ()
    assert transcript.open_words == list(WORDS)
    transcript.add(SEGMENTS[0])
    assert transcript.open_words == [WORDS[2]]
    [closed, rest] = transcript.complete()
    assert closed == SEGMENTS[0]
    assert (rest.id, rest.text, rest.start, rest.end) == (1, " what", 1.2, 1.5)
    assert (rest.language, rest.words) == ("de", WORDS[2:])
    transcript.add(SEGMENTS[1])
    assert transcript.complete() == SEGMENTS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", "Ask not\nwhat\n"),
        (
            "a.SRT",
            "1\n00:00:00,000 --> 00:00:00,800\nAsk not\n\n2\n00:00:01,200 --> 00:00:01,500\nwhat\n",
        ),
        (
            "a.vtt",
            (
                "WEBVTT\n\n00:00:00.000 --> 00:00:00.800\nAsk not\n\n"
                "00:00:01.200 --> 00:00:01.500\nwhat\n"
            ),
        ),
    ],
)
def test_each_format_by_extension(tmp_path: Path, name: str, expected: str) -> None:
    OutputFile(tmp_path / name).write(SEGMENTS)
    assert (tmp_path / name).read_text() == expected


def test_json_holds_the_segments(tmp_path: Path) -> None:
    OutputFile(tmp_path / "a.json").write(SEGMENTS)
    written = json.loads((tmp_path / "a.json").read_text())
    assert [each["text"].strip() for each in written["segments"]] == ["Ask not", "what"]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    output = OutputFile(path)
    assert path.read_text() == "old"
    output.write(SEGMENTS)
    assert path.read_text() == "Ask not\nwhat\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    OutputFile(tmp_path / "link.txt").write(SEGMENTS)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "Ask not\nwhat\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.doc", "the extension must be one of .srt, .vtt, .txt, .json"),
        ("a", "the extension must be one of"),
        ("missing/a.srt", "cannot be written: no such file or directory"),
        ("file/a.srt", "cannot be written: not a directory"),
        ("folder.srt", "is a directory"),
        ("n" * 300 + ".srt", "cannot be written: file name too long"),
    ],
)
def test_what_cannot_be_written_is_named_at_once(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.srt").mkdir()
    with pytest.raises(OutputError) as caught:
        OutputFile(tmp_path / name)
    assert str(caught.value).startswith(f"--output {tmp_path / name}: ")
    assert reason in str(caught.value)


def test_a_folder_that_went_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    output = OutputFile(tmp_path / "folder" / "a.txt")
    (tmp_path / "folder").rmdir()
    with pytest.raises(OutputError, match="cannot be written: no such file or directory"):
        output.write(SEGMENTS)
