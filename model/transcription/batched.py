"""Batched transcription of long files: cut at silences beforehand, several windows are decoded at once.

This differs from the sequential way: windows do not prompt each other (only ``initial_prompt`` does),
and silences between windows are never decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from ..decoding.inference import EncodedAudio
from ..decoding.task import DecodingOptions, DecodingResult, decode_with_fallback
from ..media.audio import HOP_LENGTH, SAMPLE_RATE
from .long_form import AudioFile, TranscribeOptions, initial_tokens, segments_of, time_words
from .segments import (
    SegmentTokens,
    Transcript,
    WindowSegments,
    WindowSpan,
    cut_window,
    frame_of,
    last_end,
)

__all__ = ["BatchedWindows", "Chunk", "plan_windows", "speech_flags"]

_FRAME = 480  # samples of one decision of the detector: 30 ms
_MEL_FRAMES = _FRAME // HOP_LENGTH  # of one detector frame: 3
_LONGEST = 1000  # detector frames of a window: 30 s
_PADDING = 10  # detector frames kept before speech begins and after it ends: 0.3 s
_SEARCH = 167  # detector frames before the limit where a cut without silence is sought: 5 s
_AGGRESSIVENESS = 1  # 0..3; a missed word costs more than a silence decoded

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    span: WindowSpan
    speech_end: int  # mel frame at which the last speech in it ends


def plan_windows(samples: NDArray[np.float32], clips: Sequence[tuple[int, int]]) -> list[Chunk]:
    """Windows of at most 30 s that hold all speech of the ``clips`` (mel frames, from and to).

    ``samples`` are 16 kHz in -1..1. A window begins shortly before speech, and ends in the longest
    silence of its second half, or at the quietest moment of its last 5 s where there is none.
    """
    chunks: list[Chunk] = []
    total = len(samples) // HOP_LENGTH
    for begin, end in clips:
        end = min(end, total)
        clip = samples[begin * HOP_LENGTH : end * HOP_LENGTH]
        flags, loudness = speech_flags(clip), _loudness(clip)
        for first, last in _windows(flags, loudness):
            seek = begin + first * _MEL_FRAMES
            frames = min(begin + last * _MEL_FRAMES, end) - seek
            spoken = first + int(np.flatnonzero(flags[first:last])[-1]) + 1
            speech_end = begin + spoken * _MEL_FRAMES
            chunks.append(Chunk(span=WindowSpan(seek=seek, frames=frames), speech_end=speech_end))
    return chunks


def speech_flags(samples: NDArray[np.float32]) -> Flags:
    """Whether each 30 ms of 16 kHz ``samples`` holds speech; the last frame is filled with zeros."""
    detector = webrtcvad.Vad(_AGGRESSIVENESS)
    frames = (_framed(samples).clip(-1, 1) * 32767).astype(np.int16)
    return np.array([detector.is_speech(frame.tobytes(), SAMPLE_RATE) for frame in frames], bool)


def _framed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.pad(samples, (0, -len(samples) % _FRAME)).reshape(-1, _FRAME)


def _loudness(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    power: NDArray[np.float32] = np.square(_framed(samples)).mean(axis=1)
    return power


def _windows(flags: Flags, loudness: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Detector frames, from and to, of every window."""
    speech = np.flatnonzero(flags)
    windows: list[tuple[int, int]] = []
    at = 0
    while len(ahead := speech[speech >= at]):
        begin = max(at, int(ahead[0]) - _PADDING)
        end = min(int(ahead[-1]) + 1 + _PADDING, len(flags))
        if end - begin > _LONGEST:
            end = _cut(flags, loudness, begin + _LONGEST // 2, begin + _LONGEST)
        windows.append((begin, end))
        at = end
    return windows


def _cut(flags: Flags, loudness: NDArray[np.float32], low: int, high: int) -> int:
    """The frame between ``low`` and ``high`` at which to cut."""
    edges = np.flatnonzero(np.diff(flags[low:high], prepend=True, append=True))
    starts, ends = edges[::2], edges[1::2]  # of the silences
    if not len(starts):
        low = high - _SEARCH
        return low + int(loudness[low:high].argmin())
    longest = int((ends - starts).argmax())
    return low + int(starts[longest] + ends[longest]) // 2


# Mel frames of speech left in a chunk that are worth another window,
_LEAST_REST = 30  # when the model left a segment open,
_LEAST_MISSED = 100  # and when it took the text for finished


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Window:
    """One decoded window."""

    span: WindowSpan
    result: DecodingResult
    pieces: list[SegmentTokens]
    audio: EncodedAudio  # one row


@dataclass(slots=True, kw_only=True, eq=False)
class _Work:
    """A chunk and how far it is decoded."""

    chunk: Chunk
    left: WindowSpan | None  # what is to be decoded next
    windows: list[_Window] = field(default_factory=list)


class BatchedWindows:
    """Transcribes a recording in batches of windows, into ``transcript``."""

    def __init__(
        self,
        recording: AudioFile,
        samples: NDArray[np.float32],
        ladder: Sequence[DecodingOptions],
        options: TranscribeOptions,
        transcript: Transcript,
    ) -> None:
        self._recording = recording
        self._ladder = ladder
        self._options = options
        self._transcript = transcript
        self._prompt = initial_tokens(options, recording.tokenizer)
        self._last_speech = 0.0  # seconds; end of the last timed word
        chunks = plan_windows(samples, recording.clips)
        self._queue = deque(_Work(chunk=chunk, left=chunk.span) for chunk in chunks)
        self._unwritten = deque(self._queue)  # chunks in order, the first not yet in the transcript

    def run(self, batch_size: int) -> Iterator[int]:
        """Yields, after each batch, the mel frame up to which all is in the transcript."""
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(batch_size, len(self._queue)))]
            self._decode(batch)
            # what is left of them comes first, so that the transcript can go on
            self._queue.extendleft(work for work in reversed(batch) if work.left is not None)
            done = 0
            while self._unwritten and self._unwritten[0].left is None:
                work = self._unwritten.popleft()
                self._write(work)
                done = work.chunk.span.seek + work.chunk.span.frames
            if done:
                yield done

    def _decode(self, batch: Sequence[_Work]) -> None:
        """One window of each."""
        spans = [work.left for work in batch if work.left is not None]
        audio = self._recording.encode(spans)
        model, policy = self._recording.model, self._options.policy
        results = decode_with_fallback(model, audio, self._ladder, policy, prompt=self._prompt)
        for row, (work, span, result) in enumerate(zip(batch, spans, results, strict=True)):
            work.left = None
            if policy.is_silence(result):
                continue
            cut = cut_window(result.tokens, span, self._recording.tokenizer.timestamp_begin)
            work.windows.append(
                _Window(span=span, result=result, pieces=cut.pieces, audio=audio.select([row]))
            )
            work.left = _left(work.chunk, span, cut)

    def _write(self, work: _Work) -> None:
        for window in work.windows:
            segments = segments_of(
                window.pieces, window.span, window.result, self._recording.tokenizer
            )
            if self._options.word_timestamps:
                time_words(
                    self._recording,
                    self._options,
                    segments,
                    window.span,
                    window.audio,
                    self._last_speech,
                )
                self._last_speech = last_end(segments) or self._last_speech
            self._transcript.add(segments)
        work.windows.clear()  # with the encoded audio


def _left(chunk: Chunk, span: WindowSpan, cut: WindowSegments) -> WindowSpan | None:
    """What is to be decoded next of a chunk: the model may stop early, or within a segment."""
    at, least = cut.seek, _LEAST_REST
    if cut.ends_alone:
        at, least = frame_of(cut.pieces[-1].end), _LEAST_MISSED
    if not span.seek < at <= chunk.speech_end - least:
        return None
    return WindowSpan(seek=at, frames=span.seek + span.frames - at)
