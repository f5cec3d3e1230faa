"""What ``whisper-stream bench`` measures: recordings, and what is known of them. No torch here.

A manifest has one JSON object a line: ``file`` beside it, and where known ``text``, ``spoken`` (the
text as spoken, where ``text`` has digits), ``language``, ``kind`` and ``words`` with their times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...model.errors import UsageError

__all__ = ["BenchClip", "TimedWord", "read_clips"]

_MANIFEST = "manifest.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
    """A word as somebody timed it, in seconds from the start of the recording."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchClip:
    path: Path
    language: str | None = None  # as the manifest says; not always one that Whisper knows
    references: tuple[str, ...] = ()  # ways to write what is said; none: not known
    words: tuple[TimedWord, ...] = ()


def read_clips(
    paths: Sequence[Path],
    *,
    reference: Path | None = None,
    kinds: Sequence[str] = ("speech",),
    only: Sequence[str] = (),
) -> list[BenchClip]:
    """The clips that ``paths`` name: recordings, manifests, or folders with a ``manifest.jsonl``.

    ``kinds`` chooses among the rows of manifests, ``only`` by parts of file names, and ``reference``
    is the text of the only recording. Raises UsageError.
    """
    clips: list[BenchClip] = []
    for path in paths:
        if path.is_dir() or path.suffix == ".jsonl":
            clips += _manifest(path / _MANIFEST if path.is_dir() else path, kinds)
        elif path.is_file():
            clips.append(BenchClip(path=path))
        else:
            raise UsageError(f"{path} does not exist: name recordings, a manifest or its folder")
    clips = [clip for clip in clips if _chosen(clip, only)]
    if not clips:
        raise UsageError("no recording is left to measure: see --kind and --only")
    if reference is None:
        return clips
    if len(clips) > 1 or clips[0].references:
        raise UsageError("--reference is the text of one recording: name a single audio file")
    return [BenchClip(path=clips[0].path, references=(_read(reference).strip(),))]


def _chosen(clip: BenchClip, only: Sequence[str]) -> bool:
    return not only or any(part in clip.path.name for part in only)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8") from error


def _manifest(path: Path, kinds: Sequence[str]) -> Iterator[BenchClip]:
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            clip = _clip(path.parent, row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} line {number} is no object with a file, its text and word times"
                f" ({type(error).__name__}: {error})"
            ) from error
        if row.get("kind", "speech") in kinds or "all" in kinds:
            yield clip


def _clip(folder: Path, row: dict[str, Any]) -> BenchClip:
    texts = [row[name] for name in ("text", "spoken") if row.get(name) is not None]
    if not all(isinstance(text, str) for text in (row["file"], *texts)):
        raise TypeError("file, text and spoken must be strings")
    words = [
        TimedWord(text=str(word["word"]), start=float(word["start"]), end=float(word["end"]))
        for word in row.get("words") or ()
    ]
    return BenchClip(
        path=folder / row["file"],
        language=row.get("language"),
        references=tuple(dict.fromkeys(texts)),
        words=tuple(words),
    )
