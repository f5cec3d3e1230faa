"""Recordings and manifests that the tools measure, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_stream.clients.errors import SourceError, UsageError
from whisper_stream.clients.tools.clips import Clip, choose_language, read_clips, read_durations

from ...helpers.texts import DATA

JFK = DATA / "en-speech-jfk.wav"


def test_a_manifest_gives_texts_languages_and_times(tmp_path: Path) -> None:
    rows = [
        {"file": "a.wav", "text": "2:30", "spoken": "two thirty", "language": "en"},
        {"file": "b.wav", "kind": "noise", "text": ""},
        {"file": "c.wav", "words": [{"word": "hi", "start": 0, "end": 0.5}]},
    ]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, third = read_clips([tmp_path])
    assert first.path == str(tmp_path / "a.wav")
    assert first.references == ("2:30", "two thirty")
    assert first.language == "en"
    assert third.references == ()
    assert [(word.text, word.start, word.end) for word in third.words] == [("hi", 0.0, 0.5)]
    assert [clip.name for clip in read_clips([manifest], kinds=["noise"])] == ["b.wav"]
    assert len(read_clips([manifest], kinds=["all"])) == 3


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', '{"file": "a", "text": 1}'])
def test_a_bad_line_of_a_manifest_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text(f'{{"file": "a.wav"}}\n{line}\n')
    with pytest.raises(SourceError, match=r"manifest\.jsonl line 2: is no row"):
        read_clips([tmp_path])


def test_word_times_must_be_numbers(tmp_path: Path) -> None:
    row = {"file": "a.wav", "words": [{"word": "hi", "start": "soon", "end": 1}]}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(row))
    with pytest.raises(SourceError, match="line 1"):
        read_clips([tmp_path])


def test_durations_are_read_and_a_language_chosen() -> None:
    clips = read_durations(read_clips([DATA, JFK]))
    by_name = {each.name: each for each in clips[:-1]}
    assert "noise-dog.flac" not in by_name
    assert by_name["de-read-portal.flac"].language == "de"
    assert by_name[JFK.name].references[0].startswith("And so, my fellow Americans")
    assert clips[-1] == Clip(path=str(JFK), seconds=11.0)
    chosen = choose_language(clips, "de")
    assert {each.name for each in chosen} == {"de-read-portal.flac", JFK.name}
    assert {each.language for each in chosen} == {"de"}


def test_recordings_that_cannot_be_used(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    with pytest.raises(SourceError, match="manifest.jsonl: cannot be read"):
        read_clips([tmp_path])
    manifest.write_text('\n{"text": "no file"}\n')
    with pytest.raises(SourceError, match="line 2: is no row"):
        read_clips([manifest])
    manifest.write_text('{"file": "x.wav", "kind": "noise"}\n')
    with pytest.raises(UsageError, match="no recording of kind speech"):
        read_clips([manifest])
    with pytest.raises(UsageError, match="no recording of kind noise with y in its name"):
        read_clips([manifest], kinds=["noise"], only=["y"])
    with pytest.raises(SourceError, match=r"x\.wav does not exist"):
        read_durations(read_clips([manifest], kinds=["noise"]))
    with pytest.raises(UsageError, match="no recording is in 'fr'"):
        choose_language([Clip(path="a", language="en")], "fr")
