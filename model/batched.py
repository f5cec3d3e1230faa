"""Long files several windows at a time: cut at silences beforehand, so that none waits for another.

This differs from the sequential way: windows do not prompt each other (only ``initial_prompt`` does),
and silences between windows are never decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .chunks import Chunk, plan_windows
from .decoding import DecodingOptions, DecodingResult
from .fallback import decode_with_fallback
from .inference import EncodedAudio
from .segments import Cut, Piece, Span, Transcript, cut_window, frame_of, last_end
from .transcription_state import (
    Recording,
    TranscribeOptions,
    initial_tokens,
    segments_of,
    time_words,
)

__all__ = ["BatchedWindows"]

# Mel frames of speech left in a chunk that are worth another window,
_LEAST_REST = 30  # when the model left a segment open,
_LEAST_MISSED = 100  # and when it took the text for finished


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Window:
    """One decoded window."""

    span: Span
    result: DecodingResult
    pieces: list[Piece]
    audio: EncodedAudio  # one row


@dataclass(slots=True, kw_only=True, eq=False)
class _Work:
    """A chunk and how far it is decoded."""

    chunk: Chunk
    left: Span | None  # what is to be decoded next
    windows: list[_Window] = field(default_factory=list)


class BatchedWindows:
    """Transcribes a recording in batches of windows, into ``transcript``."""

    def __init__(
        self,
        recording: Recording,
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


def _left(chunk: Chunk, span: Span, cut: Cut) -> Span | None:
    """What is to be decoded next of a chunk: the model may stop early, or within a segment."""
    at, least = cut.seek, _LEAST_REST
    if cut.ends_alone:
        at, least = frame_of(cut.pieces[-1].end), _LEAST_MISSED
    if not span.seek < at <= chunk.speech_end - least:
        return None
    return Span(seek=at, frames=span.seek + span.frames - at)
