"""``transcribe``: audio of any length in, text with times out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..decoding.fallback import (
    COMPRESSION_RATIO_THRESHOLD,
    LOGPROB_THRESHOLD,
    NO_SPEECH_THRESHOLD,
    TEMPERATURES,
    FallbackPolicy,
    options_ladder,
)
from ..decoding.inference import EncodedAudio
from ..decoding.task import DecodingOptions, check_for_model, detect_language
from ..errors import DecodingOptionsError
from ..media.audio import N_FRAMES, N_SAMPLES, load_audio, to_waveform
from ..whisper.mel import log_mel_spectrogram
from ..whisper.network import Whisper
from ..whisper.tokenizer import get_tokenizer
from ..whisper.words import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from .long_form import AudioFile, LongForm, TranscribeOptions
from .progress import progress_bar, write_segment
from .segments import Segment, Transcript, frame_of

__all__ = ["transcribe"]

Audio = str | Path | NDArray[Any] | torch.Tensor


@torch.inference_mode()
def transcribe(
    model: Whisper,
    audio: Audio,
    *,
    verbose: bool | None = None,
    temperature: float | Sequence[float] = TEMPERATURES,
    compression_ratio_threshold: float | None = COMPRESSION_RATIO_THRESHOLD,
    logprob_threshold: float | None = LOGPROB_THRESHOLD,
    no_speech_threshold: float | None = NO_SPEECH_THRESHOLD,
    condition_on_previous_text: bool = True,
    initial_prompt: str | None = None,
    carry_initial_prompt: bool = False,
    word_timestamps: bool = False,
    prepend_punctuations: str = PREPEND_PUNCTUATIONS,
    append_punctuations: str = APPEND_PUNCTUATIONS,
    clip_timestamps: str | Iterable[float] = "0",
    hallucination_silence_threshold: float | None = None,
    batch_size: int = 1,
    on_segment: Callable[[Segment], None] | None = None,
    on_language: Callable[[str], None] | None = None,
    **decode_options: Any,
) -> dict[str, Any]:
    """Transcribe a file or an array of any length.

    Args:
        model: as made by ``load_model``.
        audio: a file of any format, or 16 kHz samples as for ``to_waveform``.
        verbose: True gives each segment to ``on_segment`` as it is found (written to standard output
            when None); False shows a progress bar on a terminal; None shows nothing.
        temperature: of sampling; a series is a ladder, climbed while a window's result is not good.
        compression_ratio_threshold: above it, a result is not good: it repeats itself.
        logprob_threshold: a mean log-probability below it is not good either.
        no_speech_threshold: a probability of no speech above it, where the text is not good by
            ``logprob_threshold``, means silence.
        condition_on_previous_text: what was said before prompts the next window.
        initial_prompt: text to prompt the first window with: names, spelling, style.
        carry_initial_prompt: prompt every window with it.
        word_timestamps: give each word its times, and let them decide where windows begin.
        prepend_punctuations, append_punctuations: marks that belong to the next word, or the last.
        clip_timestamps: seconds, ``start,end,start,end,...``; the last end is that of the file.
        hallucination_silence_threshold: with word times, silences longer than this (seconds) next to
            text that looks made up are skipped.
        batch_size: windows decoded at once. Above 1, the file is cut at silences beforehand: faster,
            but windows do not prompt each other, and text and times may differ from the reference's.
        on_segment: called with each segment when ``verbose`` is True.
        on_language: called with the detected language's code, where it was detected.
        decode_options: fields of ``DecodingOptions``, for every window.

    Returns:
        ``{"text", "segments", "language"}``; segments are dicts as the reference's: id, seek, start,
        end, text, tokens, temperature, avg_logprob, compression_ratio, no_speech_prob, and words
        (word, start, end, probability) when asked for.

    Raises:
        AudioError: the audio cannot be read.
        DecodingOptionsError: an option makes no sense; names it.
    """
    options = TranscribeOptions(
        policy=FallbackPolicy(
            compression_ratio_threshold=compression_ratio_threshold,
            logprob_threshold=logprob_threshold,
            no_speech_threshold=no_speech_threshold,
        ),
        condition_on_previous_text=condition_on_previous_text,
        initial_prompt=initial_prompt,
        carry_initial_prompt=carry_initial_prompt,
        word_timestamps=word_timestamps,
        prepend_punctuations=prepend_punctuations,
        append_punctuations=append_punctuations,
        hallucination_silence_threshold=hallucination_silence_threshold,
    )
    points = clip_points(clip_timestamps)
    _check(options, decode_options, batch_size)
    ladder = options_ladder(temperature, decode_options)
    check_for_model(model, ladder[0])
    if not verbose:
        on_segment = None
    elif on_segment is None:
        on_segment = write_segment

    samples = _samples(audio)
    recording, language = _prepare(model, samples, points, ladder[0], on_language)
    ladder = tuple(replace(step, language=language) for step in ladder)
    transcript = Transcript(on_segment)
    with progress_bar(recording.content_frames, shown=verbose is False) as progress:
        for seek in _run(recording, samples, ladder, options, transcript, batch_size):
            progress(seek)
    return {
        "text": recording.tokenizer.decode(transcript.tokens),
        "segments": [segment.as_dict() for segment in transcript.segments],
        "language": language,
    }


def _run(
    recording: AudioFile,
    samples: NDArray[np.float32],
    ladder: Sequence[DecodingOptions],
    options: TranscribeOptions,
    transcript: Transcript,
    batch_size: int,
) -> Iterator[int]:
    """Fills the transcript; yields the mel frame up to which the work is done."""
    if batch_size > 1:
        from .batched import BatchedWindows  # loads the speech detector

        yield from BatchedWindows(recording, samples, ladder, options, transcript).run(batch_size)
        return
    machine = LongForm(recording, ladder, options, transcript)
    while machine.step():
        yield machine.seek


def _samples(audio: Audio) -> NDArray[np.float32]:
    return load_audio(audio) if isinstance(audio, (str, Path)) else to_waveform(audio)


def _check(options: TranscribeOptions, decode_options: Mapping[str, Any], batch_size: int) -> None:
    if decode_options.get("prompt") is not None:
        raise DecodingOptionsError(
            "prompt is what was said before one window: for a whole file give initial_prompt"
        )
    if decode_options.get("task") == "lang_id":
        raise DecodingOptionsError("task lang_id gives no text: use detect_language instead")
    if batch_size < 1:
        raise DecodingOptionsError(f"batch_size must be at least 1, not {batch_size}")
    threshold = options.hallucination_silence_threshold
    if threshold is not None and not threshold >= 0:
        raise DecodingOptionsError(
            f"hallucination_silence_threshold must not be negative, and is {threshold}"
        )
    if threshold is not None and batch_size > 1:
        raise DecodingOptionsError(
            "hallucination_silence_threshold moves from window to window: it needs batch_size 1"
        )
    if options.word_timestamps and decode_options.get("task") == "translate":
        warnings.warn(
            "word times of a translation are not reliable: its words are not those spoken",
            stacklevel=4,
        )


def clip_points(clip_timestamps: str | Iterable[float]) -> list[int]:
    """Seconds as text or numbers -> mel frames."""
    if isinstance(clip_timestamps, str):
        clip_timestamps = clip_timestamps.split(",") if clip_timestamps else []  # type: ignore[assignment]
    try:
        seconds = [float(point) for point in clip_timestamps]
    except (TypeError, ValueError):
        raise DecodingOptionsError(
            "clip_timestamps must be seconds separated by commas: start,end,start,end,..."
        ) from None
    if any(not math.isfinite(point) or point < 0 for point in seconds):
        raise DecodingOptionsError("clip_timestamps must be seconds that are not negative")
    for start, end in zip(seconds[::2], seconds[1::2], strict=False):
        if end < start:
            raise DecodingOptionsError(
                f"clip_timestamps has a clip that ends ({end:g}) before it starts ({start:g})"
            )
    return [frame_of(point) for point in seconds] or [0]


def _prepare(
    model: Whisper,
    samples: NDArray[np.float32],
    points: list[int],
    options: DecodingOptions,
    on_language: Callable[[str], None] | None,
) -> tuple[AudioFile, str]:
    """The recording ready to be transcribed, and its language, detected where none is given."""
    mel = log_mel_spectrogram(samples, model.dims.n_mels, padding=N_SAMPLES)
    content_frames = mel.shape[-1] - N_FRAMES
    language = options.language
    first: EncodedAudio | None = None
    if language is None and model.is_multilingual:
        first = EncodedAudio.from_mel(model, mel[None, :, :N_FRAMES])
        _, probs = detect_language(model, first)
        language = max(probs[0], key=probs[0].__getitem__)
        if on_language is not None:
            on_language(language)
    tokenizer = get_tokenizer(
        model.is_multilingual,
        num_languages=model.num_languages,
        language=language,
        task=options.task,
    )
    ends = points if len(points) % 2 == 0 else [*points, content_frames]
    recording = AudioFile(
        model=model,
        tokenizer=tokenizer,
        mel=mel,
        clips=tuple(zip(ends[::2], ends[1::2], strict=True)),
        # a shorter file's window ends in zeros, what was encoded in silence
        first_window=first if content_frames >= N_FRAMES else None,
    )
    return recording, language or "en"
