"""``whisper-stream models``: the published models, and where each one is on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...model.weights.locate import ModelSource, cache_dir, candidates, is_intact
from ...model.weights.registry import ALIASES, PublishedModel, available_models, lookup
from ...server.flags import FlagParser
from .args import command_parser

__all__ = ["main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelRow:
    """One model in one place; as JSON, its fields are the keys."""

    name: str
    aliases: tuple[str, ...]
    parameters: int
    languages: int  # 1: English only
    download_bytes: int
    found: str | None  # "cache" or "package"; None: not on this machine
    paths: tuple[str, ...]
    disk_bytes: int | None
    intact: bool | None  # None: not asked for


def main(argv: Sequence[str]) -> int:
    """List the models; return 1 if a file that was to be verified is damaged.

    Raises:
        UsageError: a flag cannot be used.
    """
    options = _parser().parse_args(argv)
    root = cache_dir(options.model_dir)
    names = [name for name in available_models() if name not in ALIASES]
    rows = [row for name in names for row in _rows(lookup(name), root, options.verify)]
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=2)
    else:
        text = "\n".join([*_table(rows), "", f"Downloads go to {root}."])
    sys.stdout.write(text + "\n")
    return 1 if any(row.intact is False for row in rows) else 0


def _parser() -> FlagParser:
    parser = command_parser(
        "models",
        description="List the published models, their sizes, and where each was found.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument(
        "--verify", action="store_true", help="check the SHA-256 of every file found"
    )
    parser.add_argument(
        "--model_dir", "--model-dir", type=Path, metavar="DIR", help="folder that downloads go to"
    )
    return parser


def _rows(model: PublishedModel, root: Path, verify: bool) -> Iterable[_ModelRow]:
    """Return one row for the place a model is taken from; with ``verify`` one for every place."""
    sources = list(candidates(model, root))
    if not sources:
        return [_row(model, None, None)]
    if verify:
        return [_row(model, source, is_intact(source, again=True)) for source in sources]
    # A file of another size is not the model, which costs nothing to see.
    usable = [source for source in sources if not _wrong_size(source, model)]
    return [_row(model, usable[0] if usable else None, None)]


def _wrong_size(source: ModelSource, model: PublishedModel) -> bool:
    return source.kind == "cache" and source.paths[0].stat().st_size != model.size


def _row(model: PublishedModel, source: ModelSource | None, intact: bool | None) -> _ModelRow:
    return _ModelRow(
        name=model.name,
        aliases=tuple(alias for alias, name in ALIASES.items() if name == model.name),
        parameters=model.dims.n_parameters,
        languages=model.dims.num_languages if model.dims.is_multilingual else 1,
        download_bytes=model.size,
        found=source.kind if source else None,
        paths=tuple(str(path) for path in source.paths) if source else (),
        disk_bytes=_disk_bytes(source.paths) if source else None,
        intact=intact,
    )


def _disk_bytes(paths: Iterable[Path]) -> int:
    files = (item for path in paths for item in ([path] if path.is_file() else path.iterdir()))
    return sum(file.stat().st_size for file in files if file.is_file())


def _table(rows: Sequence[_ModelRow]) -> list[str]:
    lines = [("model", "parameters", "size", "languages", "where")]
    lines += [
        (
            " = ".join((row.name, *row.aliases)),
            f"{row.parameters / 1e6:.0f} M",
            _megabytes(row.disk_bytes or row.download_bytes),
            "English" if row.languages == 1 else str(row.languages),
            _where(row),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]
        )
        for line in lines
    ]


def _where(row: _ModelRow) -> str:
    if row.found is None:
        return f"not here: downloads {_megabytes(row.download_bytes)} on first use"
    verdict = {None: "", True: " (verified)", False: " (DAMAGED: its SHA-256 is another)"}
    return f"{row.found}: {', '.join(row.paths)}{verdict[row.intact]}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
