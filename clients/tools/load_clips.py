"""The recordings that ``whisper-stream load`` plays, and what is known of them.

A manifest has one JSON object a line: ``file`` beside it, and where known ``text``, ``spoken`` (the
text as spoken, where ``text`` has digits), ``language`` and ``kind``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..errors import SourceError, UsageError
from ..sources.files import AudioSource, reason_of

__all__ = ["LoadClip", "choose_language", "read_clips"]

_MANIFEST = "manifest.jsonl"


class LoadClip(msgspec.Struct, frozen=True, kw_only=True):
    """``references`` are ways to write what is said; none: not known. ``seconds`` is as declared."""

    path: str
    seconds: float = 0.0
    language: str | None = None
    references: tuple[str, ...] = ()


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    text: str | None = None
    spoken: str | None = None
    language: str | None = None
    kind: str = "speech"


def read_clips(paths: Sequence[Path]) -> list[LoadClip]:
    """The recordings of speech that ``paths`` name: files, manifests, or folders with a manifest.

    Raises:
        SourceError: one of them cannot be read, is no audio, or no manifest.
        UsageError: nothing is left to play.
    """
    clips: list[LoadClip] = []
    for path in paths:
        if path.is_dir() or path.suffix == ".jsonl":
            clips += _manifest(path / _MANIFEST if path.is_dir() else path)
        else:
            clips.append(_checked(LoadClip(path=str(path))))
    if not clips:
        raise UsageError("the manifest names no recording of kind speech; name audio files")
    return clips


def choose_language(clips: Sequence[LoadClip], language: str) -> list[LoadClip]:
    """Those in ``language``, and those of which nothing is known, which are then taken to be so.

    Raises:
        UsageError: there is none.
    """
    chosen = [
        msgspec.structs.replace(clip, language=language)
        for clip in clips
        if clip.language in (None, language)
    ]
    if not chosen:
        raise UsageError(f"no recording is in {language!r}; see --language and --model")
    return chosen


def _manifest(path: Path) -> Iterator[LoadClip]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not text in UTF-8; name a manifest or audio") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Row)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{path} line {number}: is no row of a manifest: {error}") from None
        if row.kind == "speech":
            texts = [text for text in (row.text, row.spoken) if text is not None]
            yield _checked(
                LoadClip(
                    path=str(path.parent / row.file),
                    language=row.language,
                    references=tuple(dict.fromkeys(texts)),
                )
            )


def _checked(clip: LoadClip) -> LoadClip:
    seconds = AudioSource(clip.path).check()
    return msgspec.structs.replace(clip, seconds=seconds or 0.0)
