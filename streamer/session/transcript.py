"""The committed words of a stream: its segments, the prefix of its window, and the prompt before that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..config import SAMPLE_RATE, StreamConfig
from ..events import SegmentClosed, Word
from ..jobs import DecodedWord, DecodeResult

__all__ = ["MAX_PROMPT_TOKENS", "CommittedText", "TextCodec"]

MAX_PROMPT_TOKENS = 223  # half of the decoder's context, less <|startofprev|>
_SENTENCE_END = (".", "?", "!", "。", "？", "！")
_BOUNDARY_SLACK = SAMPLE_RATE // 8  # a window may begin this much inside the last word it leaves
_CROWDED_TOKENS = 160  # committed in the window
_TRIM_KEEP_SECONDS = 1.0  # of committed audio stays in the window as context


class TextCodec(Protocol):
    """The part of a tokenizer that a session needs."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, without special ones."""
        ...


class CommittedText:
    """The committed words, which never change: words are only appended.

    left the window ──► prompt | committed in the window ──► prefix | unstable (not here)

    Words are appended by the HypothesisTracker. The session closes segments, and moves the window along.
    """

    def __init__(self, config: StreamConfig, codec: TextCodec) -> None:
        self._config = config
        self._codec = codec
        self.configure(config)
        self._moved = False  # a first window was left
        self._history: list[int] = []  # tokens of words that have left the window
        self._tokens: list[tuple[int, ...]] = []  # of each word committed in the window
        self._words: list[Word] = []  # the same words, placed
        self._last_end = 0  # sample where the last committed word ends
        self._closed = 0  # leading words of these that belong to segments already closed
        self._segments = 0
        self._count = 0

    @property
    def count(self) -> int:
        """Number of words committed in all."""
        return self._count

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens committed inside the window."""
        return tuple(token for tokens in self._tokens for token in tokens)

    def configure(self, config: StreamConfig) -> None:
        """Take the client's prompt and hotwords of ``config``, as if they had been given at the start."""
        words = config.hotwords.strip()
        self._client_prompt = tuple(self._codec.encode(config.prompt)) if config.prompt else ()
        self._hotwords = tuple(self._codec.encode(f" {words}")) if words else ()

    def make_prompt(self, room: int = MAX_PROMPT_TOKENS) -> tuple[int, ...]:
        """Return the tokens of the text before the window: the client's own, then the latest committed.

        Args:
            room: the most tokens; never more than MAX_PROMPT_TOKENS.
        """
        room = max(0, min(room, MAX_PROMPT_TOKENS))
        share = room // 2 if self._config.condition_on_previous else room
        given = self._client_tokens()[-share:] if share else ()
        if not self._config.condition_on_previous:
            return given
        return (*given, *self._history[max(0, len(self._history) - (room - len(given))) :])

    def _client_tokens(self) -> tuple[int, ...]:
        carried = self._config.carry_prompt or not self._moved
        return (*(self._client_prompt if carried else ()), *self._hotwords)

    @property
    def segment_seconds(self) -> float:
        """Seconds from the first to the last word of the open segment."""
        words = self._words[self._closed :]
        return (words[-1].end_sample - words[0].start_sample) / SAMPLE_RATE if words else 0.0

    @property
    def crowded(self) -> bool:
        """True where the committed text of the window leaves the decoder little room for more."""
        return sum(len(tokens) for tokens in self._tokens) > _CROWDED_TOKENS

    @property
    def segment_open(self) -> bool:
        """True where words were committed since the last segment was closed."""
        return len(self._words) > self._closed

    def place(self, words: Sequence[DecodedWord], start: int, end: int) -> Iterator[Word]:
        """Yield ``words`` of the window ``start``..``end`` on the stream's clock, in order and inside it."""
        floor = max(self._last_end, start)
        for word in words:
            first = min(max(start + round(word.start * SAMPLE_RATE), floor), end)
            last = min(max(start + round(word.end * SAMPLE_RATE), first), end)
            floor = last
            yield Word(
                text=word.text, start_sample=first, end_sample=last, probability=word.probability
            )

    def append(self, words: Sequence[DecodedWord], start: int, end: int) -> tuple[Word, ...]:
        """Commit ``words`` of the window ``start``..``end``; return them on the stream's clock."""
        placed = tuple(self.place(words, start, end))
        self._words += placed
        self._tokens += [word.tokens for word in words]
        self._last_end = placed[-1].end_sample if placed else self._last_end
        self._count += len(placed)
        return placed

    @property
    def end_sample(self) -> int | None:
        """Sample at the end of the last word committed in the window; None while there is no word."""
        return self._words[-1].end_sample if self._words else None

    def find_end_after(self, sample: int) -> int | None:
        """Return where the first word of the window that ends after ``sample`` ends, if there is one."""
        return next((w.end_sample for w in self._words if w.end_sample > sample), None)

    def find_trim_sample(self, start: int, end: int) -> int | None:
        """Return the sample from which the window ``start``..``end`` is best continued, if there is one.

        It lies after the last committed sentence or, when the window is nearly full or the text long,
        after the last committed word.
        """
        keep = end - round(_TRIM_KEEP_SECONDS * SAMPLE_RATE)
        ends = [word for word in self._words if start < word.end_sample <= keep]
        sentences = [word for word in ends if word.text.rstrip("\"'”’)").endswith(_SENTENCE_END)]
        if sentences:
            return sentences[-1].end_sample
        if ends and self.crowded:
            return ends[-1].end_sample
        nearly_full = (self._config.soft_window + self._config.max_window) / 2
        if ends and end - start > round(nearly_full * SAMPLE_RATE):
            return ends[-1].end_sample
        return None

    def close_segment(self, language: str, result: DecodeResult | None) -> list[SegmentClosed]:
        """Close a segment of all words committed since the last one, where there are any.

        Args:
            language: ISO code of the segment.
            result: of the decode that ended it, if one did.

        The words stay in the window.
        """
        words = tuple(self._words[self._closed :])
        if not words:
            return []
        self._closed = len(self._words)
        self._segments += 1
        logprobs = [math.log(max(word.probability, 1e-6)) for word in words]
        return [
            SegmentClosed(
                segment_id=self._segments,
                words=words,
                start_sample=words[0].start_sample,
                end_sample=words[-1].end_sample,
                language=language,
                avg_logprob=sum(logprobs) / len(logprobs),
                no_speech_prob=result.no_speech_prob if result else 0.0,
                compression_ratio=result.compression_ratio if result else 1.0,
                temperature=result.temperature if result else 0.0,
            )
        ]

    def move_window(self, start: int) -> None:
        """Let the window begin at sample ``start``: words before it become part of the prompt."""
        self._leave(sum(1 for word in self._words if word.end_sample <= start + _BOUNDARY_SLACK))

    def leave_window(self) -> None:
        """Let all words of the window become part of the prompt: the next window begins without any."""
        self._leave(len(self._words))

    def forget_history(self) -> None:
        """Drop the words before the window from the prompt: they have nothing to do with what comes."""
        self._history.clear()

    def _leave(self, count: int) -> None:
        """Let the first ``count`` words leave the window."""
        self._moved = self._moved or count > 0
        self._history += [token for tokens in self._tokens[:count] for token in tokens]
        del self._history[:-MAX_PROMPT_TOKENS]
        del self._words[:count], self._tokens[:count]
        self._closed = max(0, self._closed - count)
