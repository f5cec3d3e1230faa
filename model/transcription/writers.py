"""Transcripts as files: plain text, SubRip, WebVTT, tab-separated values and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DecodingOptionsError, ModelError
from ..media.captions import cue_block, milliseconds
from .subtitles import SubtitleOptions, subtitle_cues

__all__ = ["OUTPUT_FORMATS", "ResultWriter", "get_writer", "render_result"]

Result = Mapping[str, Any]  # "text", "segments", "language", as transcribe() returns them


def _txt(result: Result, options: SubtitleOptions) -> Iterator[str]:
    for segment in result["segments"]:
        yield f"{segment['text'].strip()}\n"


def _vtt(result: Result, options: SubtitleOptions) -> Iterator[str]:
    yield "WEBVTT\n\n"
    for cue in subtitle_cues(result["segments"], options):
        yield cue_block(cue, always_include_hours=False) + "\n"


def _srt(result: Result, options: SubtitleOptions) -> Iterator[str]:
    for number, cue in enumerate(subtitle_cues(result["segments"], options), start=1):
        yield cue_block(cue, number=number, decimal_marker=",") + "\n"


def _tsv(result: Result, options: SubtitleOptions) -> Iterator[str]:
    """Times are whole milliseconds, which no locale writes with a decimal comma."""
    yield "start\tend\ttext\n"
    for segment in result["segments"]:
        start, end = milliseconds(segment["start"]), milliseconds(segment["end"])
        text = segment["text"].strip().replace("\t", " ")
        yield f"{start}\t{end}\t{text}\n"


def _json(result: Result, options: SubtitleOptions) -> Iterator[str]:
    yield json.dumps(result)


_FORMATS: dict[str, Callable[[Result, SubtitleOptions], Iterator[str]]] = {
    "txt": _txt,
    "vtt": _vtt,
    "srt": _srt,
    "tsv": _tsv,
    "json": _json,
}
OUTPUT_FORMATS: tuple[str, ...] = tuple(_FORMATS)


def render_result(
    output_format: str, result: Result, options: Mapping[str, Any] | None = None
) -> str:
    """Return a transcript as the text of a file of one format (see :class:`SubtitleOptions`).

    Raises:
        DecodingOptionsError: when the format or an option is unknown.
    """
    _check_format(output_format, OUTPUT_FORMATS)
    return "".join(_FORMATS[output_format](result, SubtitleOptions.from_mapping(options or {})))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWriter:
    """Writes a transcript beside others in a folder, named after its audio file."""

    output_dir: Path
    formats: tuple[str, ...]

    def __call__(
        self,
        result: Result,
        audio_path: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        **more_options: Any,
    ) -> None:
        """Write ``<output_dir>/<audio name>.<format>`` for every format.

        Args:
            result: a dict with ``text``, ``segments`` and ``language``.
            audio_path: only its base name is used.
            options: the fields of :class:`SubtitleOptions` by name; keywords override them.

        Raises:
            DecodingOptionsError: when an option is unknown or below 1.
            ModelError: when a file cannot be written.
        """
        given = {name: value for name, value in more_options.items() if value}
        chosen = {**(options or {}), **given}
        stem = os.path.splitext(os.path.basename(audio_path))[0]
        for output_format in self.formats:
            text = render_result(output_format, result, chosen)
            path = Path(self.output_dir, f"{stem}.{output_format}")
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ModelError(
                    f"{path} cannot be written ({error.strerror}): choose another output_dir."
                ) from error


def get_writer(output_format: str, output_dir: str | os.PathLike[str]) -> ResultWriter:
    """Return the writer of ``txt``, ``vtt``, ``srt``, ``tsv``, ``json``, or ``all`` of them.

    Raises:
        DecodingOptionsError: when the format is none of these.
    """
    _check_format(output_format, (*OUTPUT_FORMATS, "all"))
    formats = OUTPUT_FORMATS if output_format == "all" else (output_format,)
    return ResultWriter(output_dir=Path(output_dir), formats=formats)


def _check_format(output_format: str, known: tuple[str, ...]) -> None:
    if output_format not in known:
        raise DecodingOptionsError(
            f"output_format {output_format!r} is unknown: use one of {', '.join(known)}."
        )
