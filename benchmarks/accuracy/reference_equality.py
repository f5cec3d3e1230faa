"""Compares tokens and segments with the openai-whisper package, clip by clip, mode by mode.

    python benchmarks/accuracy/reference_equality.py FOLDER [--models tiny.en base] [--modes ...] [--only WORD]

Both sides get the same audio and the same weights in fp32. Prints a table, one line a model and mode;
every difference goes to standard error as it is found, with what it takes to judge it. Exits with 1
when there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from whisper_stream.model.decoding.inference import EncodedAudio
from whisper_stream.model.decoding.task import DecodingOptions, decode, detect_language
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.transcription.transcribe import transcribe
from whisper_stream.model.weights.registry import available_models
from whisper_stream.model.whisper.mel import log_mel_spectrogram

from tests.helpers.reference import our_model, reference_model

SUFFIXES = {".flac", ".wav", ".mp3", ".ogg"}
PROMPT = "Glossary: portal, harvest, telephone, antecedents. The previous sentence ended here."
PREFIX = "And so"

DECODE_MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "no timestamps": {"without_timestamps": True},
    "beam 5": {"beam_size": 5},
    "beam 5, patience 2": {"beam_size": 5, "patience": 2.0},
    "prompt": {"prompt": PROMPT},
    "prefix": {"prefix": PREFIX},
    "translate": {"task": "translate"},
}
TRANSCRIBE_MODES: dict[str, dict[str, Any]] = {
    "transcribe": {},
    "transcribe, words": {"word_timestamps": True},
}
LANGUAGE_MODE = "language"
MODES = [*DECODE_MODES, LANGUAGE_MODE, *TRANSCRIBE_MODES]


@dataclass(slots=True)
class Row:
    clips: int = 0
    same: int = 0
    ours_seconds: float = 0.0
    reference_seconds: float = 0.0
    words: int = 0
    near_words: int = 0  # both ends within 20 ms
    differences: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--models", nargs="+", default=["tiny.en", "base"], choices=available_models()
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, help="default: all")
    parser.add_argument("--only", default="", help="clips whose name has this word")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clips = [path for path in clips_of(args.folder) if args.only in path.name]
    if not clips:
        parser.error(f"no recording in {args.folder} has {args.only!r} in its name")
    table: dict[tuple[str, str], Row] = {}
    for name in args.models:
        for path in clips:
            for mode, row in compare_clip(name, path, args.modes):
                merge(table.setdefault((name, mode), Row()), row)
                for text in row.differences:
                    print(f"{name}, {mode}: {text}", file=sys.stderr)
            print(f"{name}: {path.name} done", file=sys.stderr, flush=True)
    return report(table)


def clips_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def merge(into: Row, row: Row) -> None:
    into.clips += row.clips
    into.same += row.same
    into.ours_seconds += row.ours_seconds
    into.reference_seconds += row.reference_seconds
    into.words += row.words
    into.near_words += row.near_words
    into.differences += row.differences


def compare_clip(name: str, path: Path, modes: list[str] | None) -> Iterator[tuple[str, Row]]:
    audio = load_audio(path)
    asked = MODES
    if not our_model(name).is_multilingual:
        asked = [mode for mode in asked if mode not in ("translate", LANGUAGE_MODE)]
    asked = [mode for mode in asked if modes is None or mode in modes]
    if any(mode in DECODE_MODES or mode == LANGUAGE_MODE for mode in asked):
        yield from compare_window(name, path, audio, asked)
    for mode in asked:
        if mode in TRANSCRIBE_MODES:
            yield mode, compare_transcripts(name, path, audio, TRANSCRIBE_MODES[mode])


def compare_window(
    name: str, path: Path, audio: NDArray[np.float32], asked: list[str]
) -> Iterator[tuple[str, Row]]:
    """The first 30 seconds, encoded once by each side."""
    ours, reference = our_model(name), reference_model(name)
    mel = whisper.pad_or_trim(whisper.log_mel_spectrogram(audio, padding=480_000), 3000)
    own_mel = log_mel_spectrogram(audio, padding=480_000)[:, :3000]
    with torch.inference_mode():
        encoded = EncodedAudio.from_mel(ours, own_mel[None])
        features = reference.encoder(mel[None])
        if LANGUAGE_MODE in asked:
            _, expected = whisper.detect_language(reference, features)
            _, got = detect_language(ours, encoded)
            far = max(abs(expected[0][code] - chance) for code, chance in got[0].items())
            same = max(got[0], key=got[0].get) == max(expected[0], key=expected[0].get)
            row = Row(clips=1, same=int(same and far < 1e-4))
            if not row.same:
                row.differences.append(f"{path.name}: probabilities differ by up to {far:.2g}")
            yield LANGUAGE_MODE, row
        for mode in asked:
            if mode in DECODE_MODES:
                options = dict(DECODE_MODES[mode])
                if not ours.is_multilingual:
                    options["language"] = "en"
                yield mode, compare_decode(name, path, encoded, features, options)


def compare_decode(
    name: str, path: Path, encoded: EncodedAudio, features: torch.Tensor, options: dict[str, Any]
) -> Row:
    ours, reference = our_model(name), reference_model(name)
    got, own_seconds = timed(lambda: decode(ours, encoded, DecodingOptions(**options))[0])
    expected, seconds = timed(
        lambda: whisper.decode(reference, features, whisper.DecodingOptions(fp16=False, **options))[
            0
        ]
    )
    row = Row(clips=1, ours_seconds=own_seconds, reference_seconds=seconds)
    row.same = int(got.tokens == expected.tokens and got.language == expected.language)
    if not row.same:
        row.differences.append(
            f"{path.name}: from token {first_difference(got.tokens, expected.tokens)} of "
            f"{len(expected.tokens)}; mean log-probability ours {got.avg_logprob:.6f}, "
            f"reference {expected.avg_logprob:.6f}; {got.text!r} / {expected.text!r}"
        )
    return row


def compare_transcripts(
    name: str, path: Path, audio: NDArray[np.float32], options: dict[str, Any]
) -> Row:
    settings = {"temperature": 0.0, **options}
    got, own_seconds = timed(lambda: transcribe(our_model(name), audio, **settings))
    expected, seconds = timed(
        lambda: whisper.transcribe(reference_model(name), audio, fp16=False, **settings)
    )
    row = Row(clips=1, ours_seconds=own_seconds, reference_seconds=seconds)
    timed_words = "word_timestamps" in settings
    keys = (
        ("id", "seek", "text", "tokens")
        if timed_words
        else ("id", "seek", "text", "tokens", "start", "end")
    )
    mine = [[segment[key] for key in keys] for segment in got["segments"]]
    theirs = [[segment[key] for key in keys] for segment in expected["segments"]]
    row.same = int(mine == theirs and got["text"] == expected["text"])
    if not row.same:
        at = first_difference(mine, theirs)
        row.differences.append(
            f"{path.name}: segment {at} of {len(theirs)}: {mine[at : at + 1]} / {theirs[at : at + 1]}"
        )
    if timed_words:
        count_words(row, path, got, expected)
    return row


def count_words(row: Row, path: Path, got: dict[str, Any], expected: dict[str, Any]) -> None:
    mine = [word for segment in got["segments"] for word in segment["words"]]
    theirs = [word for segment in expected["segments"] for word in segment["words"]]
    row.words = len(theirs)
    for own, other in zip(mine, theirs, strict=False):
        apart = max(abs(own["start"] - other["start"]), abs(own["end"] - other["end"]))
        if own["word"] == other["word"] and apart <= 0.0201:
            row.near_words += 1
        else:
            row.differences.append(
                f"{path.name}: word {own['word']!r} {own['start']:.2f}-{own['end']:.2f} / "
                f"{other['word']!r} {other['start']:.2f}-{other['end']:.2f}"
            )


def first_difference(left: list[Any], right: list[Any]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = action()
    return result, time.perf_counter() - begun


def report(table: dict[tuple[str, str], Row]) -> int:
    print(
        f"{'model':9}{'mode':22}{'same':>9}{'words within 20 ms':>22}{'ours s':>9}{'reference s':>13}"
    )
    for (name, mode), row in table.items():
        words = f"{row.near_words}/{row.words}" if row.words else ""
        print(
            f"{name:9}{mode:22}{f'{row.same}/{row.clips}':>9}{words:>22}"
            f"{row.ours_seconds:9.1f}{row.reference_seconds:13.1f}"
        )
    return 1 if any(row.differences for row in table.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
