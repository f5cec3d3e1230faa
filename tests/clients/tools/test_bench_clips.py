"""What ``whisper-stream bench`` measures: manifests, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_stream.clients.tools.bench_clips import read_clips
from whisper_stream.model.errors import UsageError


def test_a_manifest_gives_texts_languages_and_times(tmp_path: Path) -> None:
    rows = [
        {"file": "a.wav", "text": "2:30", "spoken": "two thirty", "language": "en"},
        {"file": "b.wav", "kind": "noise", "text": ""},
        {"file": "c.wav", "words": [{"word": "hi", "start": 0, "end": 0.5}]},
    ]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, third = read_clips([tmp_path])
    assert first.path == tmp_path / "a.wav"
    assert first.references == ("2:30", "two thirty")
    assert first.language == "en"
    assert third.references == ()
    assert [(word.text, word.start, word.end) for word in third.words] == [("hi", 0.0, 0.5)]
    assert [clip.path.name for clip in read_clips([manifest], kinds=["noise"])] == ["b.wav"]
    assert len(read_clips([manifest], kinds=["all"])) == 3


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', '{"file": "a", "text": 1}'])
def test_a_bad_line_of_a_manifest_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text(f'{{"file": "a.wav"}}\n{line}\n')
    with pytest.raises(UsageError, match=r"manifest\.jsonl line 2 is no object"):
        read_clips([tmp_path])


def test_word_times_must_be_numbers(tmp_path: Path) -> None:
    row = {"file": "a.wav", "words": [{"word": "hi", "start": "soon", "end": 1}]}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(row))
    with pytest.raises(UsageError, match="line 1"):
        read_clips([tmp_path])
