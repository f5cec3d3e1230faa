"""Long-form transcription as a state machine: one window of 30 seconds a step.

::

    next window ──► decode, up the ladder ──► silence? ──► move past it
                                   │ no
                                   ▼
                    cut into segments ──► words ──► made up? ──► move, decode anew
                                   │
                                   ▼
                    record, choose where to go on and what to be prompted with

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section
4.5, and the published implementation, whose result this is at temperature 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..decoding.fallback import FallbackPolicy
from ..decoding.inference import EncodedAudio
from ..decoding.task import DecodingOptions, DecodingResult, decode_with_fallback
from ..media.audio import N_FRAMES, pad_or_trim
from ..whisper.network import Whisper
from ..whisper.tokenizer import Tokenizer
from ..whisper.words import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from .hallucination import review
from .segments import (
    Segment,
    SegmentTokens,
    Transcript,
    WindowSegments,
    WindowSpan,
    cut_window,
    frame_of,
    last_end,
)
from .word_times import add_word_timestamps

__all__ = [
    "LongForm",
    "AudioFile",
    "TranscribeOptions",
    "initial_tokens",
    "segments_of",
    "time_words",
]

_RESET_ABOVE = 0.5  # temperature from which on a text is no good prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeOptions:
    """What ``transcribe`` was asked for, apart from how a window is decoded."""

    policy: FallbackPolicy
    condition_on_previous_text: bool = True
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False
    word_timestamps: bool = False
    prepend_punctuations: str = PREPEND_PUNCTUATIONS
    append_punctuations: str = APPEND_PUNCTUATIONS
    hallucination_silence_threshold: float | None = None  # seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioFile:
    """What is transcribed: a model, its tokenizer, and the audio of one file."""

    model: Whisper
    tokenizer: Tokenizer
    mel: Tensor  # [n_mels, frames], with 30 seconds of silence at the end
    clips: tuple[tuple[int, int], ...]  # mel frames to transcribe, from and to
    first_window: EncodedAudio | None = None  # frames 0..3000, where they were encoded before

    @property
    def content_frames(self) -> int:
        return self.mel.shape[-1] - N_FRAMES

    def encode(self, spans: Sequence[WindowSpan]) -> EncodedAudio:
        """Each span with zeros after it, as one row."""
        if self.first_window is not None and spans == [WindowSpan(seek=0, frames=N_FRAMES)]:
            return self.first_window
        windows = [
            pad_or_trim(self.mel[:, span.seek : span.seek + span.frames], N_FRAMES)
            for span in spans
        ]
        rows = windows[0][None] if len(windows) == 1 else _stack(windows)
        return EncodedAudio.from_mel(self.model, rows)


def _stack(windows: Sequence[Tensor]) -> Tensor:
    first = windows[0]
    rows = first.new_empty((len(windows), *first.shape))
    for row, window in zip(rows, windows, strict=True):
        row.copy_(window)
    return rows


@dataclass(slots=True, kw_only=True)
class _History:
    """What has been said, and how much of it may serve as a prompt."""

    initial: list[int]  # tokens of the initial prompt
    tokens: list[int]  # these, and of all segments so far
    reset_at: int = 0  # tokens before it are no longer prompted with

    def prompt(self, *, carry: bool, room: int) -> list[int]:
        """``room``: how many tokens a prompt may have."""
        if not carry:
            return self.tokens[self.reset_at :]
        rest = self.tokens[max(len(self.initial), self.reset_at) :]
        # an initial prompt that fills all the room keeps all the rest, as in the reference
        return self.initial + rest[-(room - len(self.initial)) :]

    def add(self, segments: Sequence[Segment], *, reset: bool) -> None:
        for segment in segments:
            self.tokens += segment.tokens
        if reset:
            self.reset_at = len(self.tokens)


class LongForm:
    """Transcribes a recording window by window; each begins where the last one's speech ended.

    Call :meth:`step` until it returns False; ``transcript`` receives what is said.
    """

    def __init__(
        self,
        recording: AudioFile,
        ladder: Sequence[DecodingOptions],
        options: TranscribeOptions,
        transcript: Transcript,
    ) -> None:
        self.transcript = transcript
        self.seek = recording.clips[0][0] if recording.clips else 0  # mel frame, next window
        self._recording = recording
        self._ladder = ladder
        self._options = options
        self._clip = 0  # index of the clip being worked on
        self._last_speech = 0.0  # seconds; end of the last timed word
        initial = initial_tokens(options, recording.tokenizer)
        self._history = _History(initial=initial, tokens=list(initial))

    def step(self) -> bool:
        """Transcribes the next window; False when none is left."""
        span = self._next_span()
        if span is None:
            return False
        audio = self._recording.encode([span])
        result = self._decode(audio)
        after = span.seek + span.frames
        if self._options.policy.is_silence(result):
            self.seek = after
            return True
        cut = cut_window(result.tokens, span, self._recording.tokenizer.timestamp_begin)
        segments = segments_of(cut.pieces, span, result, self._recording.tokenizer)
        self.seek = cut.seek
        kept: list[Segment] | None = segments
        if self._options.word_timestamps:
            kept = self._time_words(segments, span, cut, audio)
        # no progress would be no end; it takes rules switched off to come here
        self.seek = self.seek if self.seek > span.seek else after
        if kept is not None:
            self._record(kept, result)
        return True

    def _next_span(self) -> WindowSpan | None:
        clips = self._recording.clips
        while self._clip < len(clips):
            begin, end = clips[self._clip]
            self.seek = max(self.seek, begin)
            if self.seek < end:
                left = min(self._recording.content_frames - self.seek, end - self.seek)
                if left > 0:
                    return WindowSpan(seek=self.seek, frames=min(N_FRAMES, left))
            self._clip += 1
            if self._clip < len(clips):
                self.seek = clips[self._clip][0]
        return None

    def _decode(self, audio: EncodedAudio) -> DecodingResult:
        room = self._recording.model.dims.n_text_ctx // 2 - 1
        prompt = self._history.prompt(carry=self._options.carry_initial_prompt, room=room)
        model, policy = self._recording.model, self._options.policy
        return decode_with_fallback(model, audio, self._ladder, policy, prompt=prompt)[0]

    def _time_words(
        self, segments: list[Segment], span: WindowSpan, cut: WindowSegments, audio: EncodedAudio
    ) -> list[Segment] | None:
        """Gives the segments their words, and lets these decide where to go on.

        Returns the segments that stay; None when the window is to be begun elsewhere.
        """
        time_words(self._recording, self._options, segments, span, audio, self._last_speech)
        end = last_end(segments)
        if not cut.ends_alone and end is not None and end > span.start:
            self.seek = frame_of(end)
        if self._options.hallucination_silence_threshold is not None:
            verdict = review(
                segments,
                span,
                seek=self.seek,
                ends_alone=cut.ends_alone,
                threshold=self._options.hallucination_silence_threshold,
                last_speech_timestamp=self._last_speech,
                content_frames=self._recording.content_frames,
            )
            self.seek = verdict.seek
            if verdict.again:
                return None
            segments = segments[: verdict.kept]
        end = last_end(segments)
        self._last_speech = self._last_speech if end is None else end
        return segments

    def _record(self, segments: Sequence[Segment], result: DecodingResult) -> None:
        self.transcript.add(segments)
        reset = not self._options.condition_on_previous_text or result.temperature > _RESET_ABOVE
        self._history.add(segments, reset=reset)


def initial_tokens(options: TranscribeOptions, tokenizer: Tokenizer) -> list[int]:
    """The initial prompt, as the tokens of running text."""
    prompt = options.initial_prompt
    return [] if prompt is None else tokenizer.encode(" " + prompt.strip())


def segments_of(
    pieces: Sequence[SegmentTokens], span: WindowSpan, result: DecodingResult, tokenizer: Tokenizer
) -> list[Segment]:
    """The pieces of a window as segments."""
    return [
        Segment(
            seek=span.seek,
            start=piece.start,
            end=piece.end,
            text=tokenizer.decode(token for token in piece.tokens if token < tokenizer.eot),
            tokens=piece.tokens,
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=result.compression_ratio,
            no_speech_prob=result.no_speech_prob,
        )
        for piece in pieces
    ]


def time_words(
    recording: AudioFile,
    options: TranscribeOptions,
    segments: Sequence[Segment],
    span: WindowSpan,
    audio: EncodedAudio,
    last_speech: float,
) -> None:
    """Gives the segments of one window, which is the one row of ``audio``, their words."""
    add_word_timestamps(
        segments,
        recording.model,
        recording.tokenizer,
        audio,
        span.frames,
        time_offset=span.start,
        last_speech_timestamp=last_speech,
        prepend_punctuations=options.prepend_punctuations,
        append_punctuations=options.append_punctuations,
    )
