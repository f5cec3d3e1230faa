"""Recordings to measure, and what is known of them: the reader of files, folders and manifests.

A manifest has one JSON object a line: ``file`` beside the manifest, and where known ``text``, ``spoken`` (the
text as spoken, where ``text`` has digits), ``language``, ``kind`` and ``words`` with their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..errors import SourceError, UsageError
from ..sources.files import AudioSource, reason_of

__all__ = ["Clip", "SpokenWord", "choose_language", "read_clips", "read_durations"]

_MANIFEST = "manifest.jsonl"


class SpokenWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word with its times in seconds from the start of the recording."""

    text: str = msgspec.field(name="word")
    start: float
    end: float


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """A recording.

    Attributes:
        path: where the audio is.
        seconds: duration as the file declares it; 0.0 where it was not read or is not declared.
        language: as the manifest says; not always one that Whisper knows.
        references: ways to write what is said; empty where that is not known.
        words: the words of the reference with their times; empty where they are not known.
    """

    path: str
    seconds: float = 0.0
    language: str | None = None
    references: tuple[str, ...] = ()
    words: tuple[SpokenWord, ...] = ()

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return Path(self.path).name


class _ManifestRow(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    text: str | None = None
    spoken: str | None = None
    language: str | None = None
    kind: str = "speech"
    words: tuple[SpokenWord, ...] | None = None


def read_clips(
    paths: Sequence[Path],
    *,
    kinds: Sequence[str] = ("speech",),
    only: Sequence[str] = (),
    reference: Path | None = None,
) -> list[Clip]:
    """Return the clips that ``paths`` name: recordings, manifests, or folders with a ``manifest.jsonl``.

    Args:
        kinds: which rows of manifests to take; ``all`` takes every row.
        only: parts of file names; a clip needs one of them. Empty takes every clip.
        reference: a file with the text of the only recording.

    Raises:
        SourceError: a file is missing, cannot be read, or is no manifest.
        UsageError: no clip is left, or ``reference`` was given for several clips.
    """
    clips: list[Clip] = []
    for path in paths:
        if path.is_dir() or path.suffix == ".jsonl":
            clips += _read_manifest(path / _MANIFEST if path.is_dir() else path, kinds)
        elif path.exists():
            clips.append(Clip(path=str(path)))
        else:
            raise SourceError(f"{path} does not exist: name recordings, a manifest or its folder")
    if only:
        clips = [clip for clip in clips if any(part in clip.name for part in only)]
    if not clips:
        named = f" with {' or '.join(only)} in its name" if only else ""
        raise UsageError(
            f"no recording of kind {' or '.join(kinds)}{named} is left; name audio files or a manifest"
        )
    if reference is None:
        return clips
    if len(clips) > 1 or clips[0].references:
        raise UsageError("--reference is the text of one recording: name a single audio file")
    return [msgspec.structs.replace(clips[0], references=(_read_text(reference).strip(),))]


def read_durations(clips: Sequence[Clip]) -> list[Clip]:
    """Return ``clips`` with their ``seconds``, as the files declare them.

    Raises:
        SourceError: a recording is missing or holds no audio.
    """
    return [
        msgspec.structs.replace(clip, seconds=AudioSource(clip.path).check() or 0.0)
        for clip in clips
    ]


def choose_language(clips: Sequence[Clip], language: str) -> list[Clip]:
    """Return the clips in ``language``; a clip of unknown language counts as one of them.

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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not text in UTF-8; name a manifest or audio") from None


def _read_manifest(path: Path, kinds: Sequence[str]) -> Iterator[Clip]:
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_ManifestRow)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{path} line {number}: is no row of a manifest: {error}") from None
        if row.kind in kinds or "all" in kinds:
            texts = [text for text in (row.text, row.spoken) if text is not None]
            yield Clip(
                path=str(path.parent / row.file),
                language=row.language,
                references=tuple(dict.fromkeys(texts)),
                words=row.words or (),
            )
