"""A job in flight in a batch: its slots, its tries, and what came of them. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from ...model.decoding.beam_row import BeamRow
from ...model.decoding.greedy_row import GreedyRow
from ...model.whisper.tokenizer import Tokenizer
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .backend import BackendConfig
from .fallback import Attempt, Ladder, initial_tokens, token_limit
from .word_times import timed_words

if TYPE_CHECKING:
    from ...model.gpu.alignment import RowTimes

__all__ = ["BatchRow", "Outcome"]

Outcome = Callable[[], DecodeResult]  # may be called from any thread

K = TypeVar("K")


@dataclass(slots=True, eq=False, kw_only=True)
class BatchRow(Generic[K]):
    key: K
    job: DecodeJob
    slot: int  # of its audio, and of its text
    frames: int  # audio positions of the audio itself
    positions: int  # that are encoded
    tail: int  # positions of silence after them
    ladder: Ladder
    config: BackendConfig
    language: str = "en"
    probability: float | None = None
    tokenizer: Tokenizer | None = None  # None: the language is not known yet
    greedy: GreedyRow | None = None  # the try that goes on
    beams: BeamRow | None = None  # or this one
    beam_texts: list[int] = field(default_factory=list)  # slots of the beams
    temperature: float = 0.0
    sot: int = 0  # place of ``<|startoftranscript|>`` in the try
    no_speech_prob: float = 0.0
    initials: dict[Attempt, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    taken: Attempt | None = None
    end: int = 0  # places of the text that was taken

    @property
    def wants_beams(self) -> bool:
        """Whether the next try is a beam search."""
        searched = self.config.final_beams > 1 and self.ladder.temperature == 0.0
        return self.job.endpoint and not self.job.hurried and searched

    def begin(self, eot: int, context: int, *, beams: bool) -> None:
        """The next try, as a beam search or greedily."""
        assert self.tokenizer is not None
        job, self.temperature = self.ladder.job, self.ladder.temperature
        initial, self.sot = initial_tokens(job, self.tokenizer)
        limit = token_limit(job, self.config)
        self.greedy = self.beams = None
        if beams:
            self.beams = BeamRow(
                initial,
                beams=self.config.final_beams,
                eot=eot,
                context=context,
                max_tokens=limit,
            )
            return
        self.greedy = GreedyRow(
            initial,
            eot=eot,
            context=context,
            draft=job.draft if self.temperature == 0.0 else (),
            max_tokens=limit,
        )

    def conclude(self) -> bool:
        """The greedy try is done. Returns whether a text is taken now; else it is tried again."""
        greedy = self.current
        return self._add(
            greedy.initial,
            tokens=greedy.tokens,
            logprobs=greedy.logprobs,
            looped=greedy.looped,
            accepted=greedy.accepted,
            passes=greedy.passes,
        )

    def conclude_beams(self, tokens: list[int], logprobs: list[float]) -> bool:
        """The same for a beam search that found ``tokens``."""
        assert self.beams is not None
        return self._add(
            self.beams.initial,
            tokens=tokens,
            logprobs=logprobs,
            looped=False,
            accepted=0,
            passes=1 + len(tokens),
        )

    @property
    def current(self) -> GreedyRow:
        """The greedy try that goes on."""
        assert self.greedy is not None
        return self.greedy

    def outcome(self, times: RowTimes | None) -> Outcome:
        """What makes the job's result of the text that was taken; ``times``: of its tokens, if it has any."""
        attempt, tokenizer = self.taken, self.tokenizer
        assert attempt is not None
        assert tokenizer is not None
        prefix, language, probability = len(self.job.prefix), self.language, self.probability

        def result() -> DecodeResult:
            words: tuple[DecodedWord, ...] = ()
            if times is not None:
                words = timed_words(
                    tokenizer,
                    language,
                    attempt.tokens,
                    attempt.logprobs,
                    times.starts[prefix:],
                    times.attended[prefix:],
                )
            return attempt.result(words, language, probability)

        return result

    def _add(
        self,
        initial: tuple[int, ...],
        *,
        tokens: list[int],
        logprobs: list[float],
        looped: bool,
        accepted: int,
        passes: int,
    ) -> bool:
        assert self.tokenizer is not None
        attempt = Attempt.of(
            self.job,
            self.tokenizer,
            tokens=tokens,
            logprobs=logprobs,
            no_speech_prob=self.no_speech_prob,
            looped=looped,
            accepted=accepted,
            passes=passes,
            temperature=self.temperature,
        )
        self.initials[attempt] = initial, self.sot
        self.taken = self.ladder.add(attempt)
        return self.taken is not None
