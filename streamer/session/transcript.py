"""What is committed: words of the open segment, the forced prefix, and the text that becomes the prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..config import SAMPLE_RATE, StreamConfig
from ..events import SegmentClosed, Word
from ..jobs import DecodedWord, DecodeResult

__all__ = ["MAX_PROMPT_TOKENS", "TextCodec", "Transcript"]

MAX_PROMPT_TOKENS = 223  # half of the decoder's context, less <|startofprev|>
_SENTENCE_END = (".", "?", "!", "。", "？", "！")
_BOUNDARY_SLACK = SAMPLE_RATE // 8  # a window may begin this much inside the last word it leaves
_CROWDED_TOKENS = 160  # committed in the window
_TRIM_KEEP_SECONDS = 1.0  # of committed audio stays in the window as context


class TextCodec(Protocol):
    def encode(self, text: str) -> list[int]:
        """Text -> tokens, without special ones."""
        ...


class Transcript:
    """Committed words never change: this only appends.

    closed segments ──► prompt | committed in the window ──► prefix | unstable tail (not here)
    """

    def __init__(
        self,
        config: StreamConfig,
        prompt: tuple[int, ...] = (),
        hotwords: tuple[int, ...] = (),
    ) -> None:
        self._config = config
        self._given_prompt = prompt  # of the client
        self._hotwords = hotwords  # of the client: always in front
        self._scrolled = False  # a first window was left
        self._history: list[int] = []  # tokens scrolled out of the window
        self._tokens: list[tuple[int, ...]] = []  # of each word committed in the window
        self._words: list[Word] = []  # the same words, placed
        self._last_end = 0  # sample where the last committed word ends
        self._closed = 0  # how many of these words belong to segments already closed
        self._segments = 0
        self._count = 0

    @property
    def count(self) -> int:
        """Words committed in all."""
        return self._count

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens committed inside the window."""
        return tuple(token for tokens in self._tokens for token in tokens)

    def expect(self, config: StreamConfig, codec: TextCodec) -> None:
        """The client's prompt and hotwords are those of ``config``; as if they were those of the start."""
        words = config.hotwords.strip()
        self._given_prompt = tuple(codec.encode(config.prompt)) if config.prompt else ()
        self._hotwords = tuple(codec.encode(f" {words}")) if words else ()

    def prompt(self, room: int = MAX_PROMPT_TOKENS) -> tuple[int, ...]:
        """Text before the window: the client's own, then the latest said.

        At most ``room`` tokens, and at most MAX_PROMPT_TOKENS.
        """
        room = max(0, min(room, MAX_PROMPT_TOKENS))
        share = room // 2 if self._config.condition_on_previous else room
        given = self._given()[-share:] if share else ()
        if not self._config.condition_on_previous:
            return given
        return (*given, *self._history[max(0, len(self._history) - (room - len(given))) :])

    def _given(self) -> tuple[int, ...]:
        carried = self._config.carry_prompt or not self._scrolled
        return (*(self._given_prompt if carried else ()), *self._hotwords)

    @property
    def segment_seconds(self) -> float:
        """From the first to the last word committed in the open segment."""
        words = self._words[self._closed :]
        return (words[-1].end_sample - words[0].start_sample) / SAMPLE_RATE if words else 0.0

    @property
    def crowded(self) -> bool:
        """Whether the committed text of the window leaves the decoder little room for more."""
        return sum(len(tokens) for tokens in self._tokens) > _CROWDED_TOKENS

    @property
    def segment_open(self) -> bool:
        """Whether words were committed since the last segment was closed."""
        return len(self._words) > self._closed

    def place(self, words: Sequence[DecodedWord], start: int, end: int) -> Iterator[Word]:
        """Puts ``words`` of the window ``start``..``end`` on the stream's clock, in order and inside it."""
        floor = max(self._last_end, start)
        for word in words:
            first = min(max(start + round(word.start * SAMPLE_RATE), floor), end)
            last = min(max(start + round(word.end * SAMPLE_RATE), first), end)
            floor = last
            yield Word(
                text=word.text, start_sample=first, end_sample=last, probability=word.probability
            )

    def commit(self, words: Sequence[DecodedWord], start: int, end: int) -> tuple[Word, ...]:
        """Appends ``words`` of the window ``start``..``end``."""
        placed = tuple(self.place(words, start, end))
        self._words += placed
        self._tokens += [word.tokens for word in words]
        self._last_end = placed[-1].end_sample if placed else self._last_end
        self._count += len(placed)
        return placed

    def last_boundary(self) -> int | None:
        """Where the last word committed in the window ends."""
        return self._words[-1].end_sample if self._words else None

    def boundary_after(self, sample: int) -> int | None:
        """Where the first committed word that ends after ``sample`` ends. None: there is none."""
        return next((w.end_sample for w in self._words if w.end_sample > sample), None)

    def trim_point(self, start: int, end: int) -> int | None:
        """Where the window ``start``..``end`` is best shortened: after the last committed sentence, or,
        when it is nearly full, after the last committed word. None: nowhere yet."""
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
        """Closes a segment of all words committed since the last one; none where there are none.

        ``result`` is that of the decode which ended it. The words stay in the window.
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

    def scroll(self, boundary: int | None) -> None:
        """The window now starts at sample ``boundary``: words before it become the prompt.

        None: the window is left for good, with all its words.
        """
        count = len(self._words)
        if boundary is not None:
            count = sum(1 for word in self._words if word.end_sample <= boundary + _BOUNDARY_SLACK)
        self._scrolled = self._scrolled or count > 0
        self._history += [token for tokens in self._tokens[:count] for token in tokens]
        del self._history[:-MAX_PROMPT_TOKENS]
        del self._words[:count], self._tokens[:count]
        self._closed = max(0, self._closed - count)

    def forget_prompt(self) -> None:
        """What was said before has nothing to do with what comes."""
        self._history.clear()
