"""``whisper-stream transcribe``: audio files in, transcripts in a folder out.

Nothing slow is loaded before the flags are known to be right.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import WhisperStreamError
from .errors import DecodingOptionsError, UsageError
from .languages import LANGUAGES
from .locate import locate
from .registry import lookup
from .transcribe_settings import TranscribeSettings, parse_settings

if TYPE_CHECKING:
    from .whisper import Whisper
    from .writers import ResultWriter

__all__ = ["main"]

_Result = TypeVar("_Result")


def main(argv: Sequence[str]) -> int:
    """Run the command. 0: done. 1: some file could not be transcribed; the others were.

    Raises:
        UsageError: a flag makes no sense, or the folder cannot be written to.
        WhisperStreamError: the model cannot be loaded.
    """
    try:
        settings = parse_settings(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    for notice in settings.notices:
        _say("warning", notice)
    writer = _writer(settings)
    with _plain_warnings():
        failed = _transcribe_files(settings, writer)
    if failed and len(settings.files) > 1:
        _say("error", f"{failed} of {len(settings.files)} files failed")
    return 1 if failed else 0


def _say(kind: str, text: str) -> None:
    sys.stderr.write(f"whisper-stream: {kind}: {' '.join(text.split())}\n")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings of the library as one line each, without a place in its source."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        _say("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


def _writer(settings: TranscribeSettings) -> ResultWriter:
    from .writers import get_writer

    folder = Path(settings.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output_dir {folder} cannot be made ({error.strerror}): choose another"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--output_dir {folder} cannot be written to: choose another")
    return get_writer(settings.output_format, folder)


def _transcribe_files(settings: TranscribeSettings, writer: ResultWriter) -> int:
    """Transcribes every file that can be; returns how many could not."""
    from .audio import load_audio
    from .transcription import transcribe

    _check_machine(settings)
    work = partial(
        transcribe,
        temperature=settings.temperatures,
        verbose=settings.verbose,
        batch_size=settings.batch_size,
        on_language=_print_language,
        **settings.options,
    )
    model: Whisper | None = None
    failed = 0
    for path in settings.files:
        if len(settings.files) > 1:
            _head(path)
        samples = _attempt(path, partial(load_audio, path))
        if samples is None:
            failed += 1
            continue
        if model is None:  # not before there is something to transcribe
            model = _load(settings)
        result = _attempt(path, partial(work, model, samples))
        if result is None or not _attempt(path, partial(_write, settings, writer, result, path)):
            failed += 1
    return failed


def _write(
    settings: TranscribeSettings, writer: ResultWriter, result: Mapping[str, Any], path: str
) -> bool:
    writer(result, path, settings.subtitles)
    return True


def _attempt(path: str, work: Callable[[], _Result]) -> _Result | None:
    """Work on one file: what goes wrong with it is told, and is no matter of the other files."""
    try:
        return work()
    except DecodingOptionsError as error:
        raise UsageError(str(error)) from error  # it would be the same with every file
    except BrokenPipeError:
        raise  # nobody reads what is printed
    except WhisperStreamError as error:
        _say("error", str(error))
    except Exception as error:  # noqa: BLE001
        _say("error", f"{path} failed ({type(error).__name__}: {error})")
    return None


def _check_machine(settings: TranscribeSettings) -> None:
    """Rejects what only PyTorch can tell, and sets the number of threads."""
    from .threads import wait_politely

    wait_politely()

    import torch

    from .compute import resolve_compute_type
    from .errors import ModelError
    from .fallback import options_ladder
    from .loading import pick_device
    from .transcription import clip_points

    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        resolve_compute_type(settings.compute_type, pick_device(settings.device))
        clip_points(settings.options.get("clip_timestamps", "0"))
        options_ladder(settings.temperatures, settings.decode_options)
    except ModelError as error:
        raise UsageError(str(error)) from error


def _load(settings: TranscribeSettings) -> Whisper:
    from .loading import load_model
    from .warmup import COMPILING, warm_up

    source = locate(settings.model, download_root=settings.model_dir)
    if source.kind == "download":
        size = lookup(settings.model).size / 1e6
        _say(
            "notice",
            f"{settings.model} is not on this machine: downloading {size:,.0f} MB to "
            f"{source.paths[0]}; `whisper-stream models` lists smaller ones for --model",
        )
    model = load_model(
        settings.model,
        device=settings.device,
        compute_type=settings.compute_type,
        download_root=settings.model_dir,
    )
    warm_up(model, lambda: _say("notice", COMPILING))
    return model


def _head(path: str) -> None:
    """Whose text follows, as ``head`` says it. On stderr: standard output is text alone, also in a pipe."""
    sys.stdout.flush()
    sys.stderr.write(f"==> {path} <==\n")
    sys.stderr.flush()


def _print_language(code: str) -> None:
    sys.stdout.write(f"Detected language: {LANGUAGES[code].title()}\n")
