"""A job that is decoded in a batch: its slots, its tries, and their results. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model.decoding.beam import BeamSearch
from ...model.decoding.greedy import GreedyRow
from ...model.whisper.tokenizer import Tokenizer
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .backend import BackendConfig, BusyRule, Outcome
from .fallback import Attempt, FallbackState, initial_tokens, token_limit
from .scheduler import QueuedJob
from .word_times import timed_words

if TYPE_CHECKING:
    from ...model.gpu.alignment import RowTimes

__all__ = ["GpuRow"]


@dataclass(slots=True, eq=False, kw_only=True)
class GpuRow:
    """A row of the running batch."""

    entry: QueuedJob
    job: DecodeJob  # that of ``entry``; without its prompt once another language is detected
    slot: int  # of its audio, and of its text
    frames: int  # audio positions of the audio itself
    positions: int  # that are encoded
    silence: int  # positions of silence after them
    fallback: FallbackState
    config: BackendConfig
    language: str = "en"
    probability: float | None = None
    tokenizer: Tokenizer | None = None  # None: the language is not known yet
    greedy: GreedyRow | None = None  # the try that goes on
    beams: BeamSearch | None = None  # or this one
    beam_slots: list[int] = field(default_factory=list)  # text slots of the beams
    temperature: float = 0.0
    sot_index: int = 0  # of ``<|startoftranscript|>`` in the try
    no_speech_prob: float = 0.0
    initials: dict[Attempt, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    taken: Attempt | None = None
    end: int = 0  # places of the text that is taken

    def wants_beams(self, rule: BusyRule) -> bool:
        """Return whether the next try is to be a beam search."""
        return self.config.searches(self.job, self.fallback.temperature, rule)

    def begin(self, eot: int, context: int, *, beams: bool) -> None:
        """Begin the next try, as a beam search or greedily.

        Args:
            context: places for tokens that the decoder has.
        """
        assert self.tokenizer is not None
        job, self.temperature = self.fallback.job, self.fallback.temperature
        initial, self.sot_index = initial_tokens(job, self.tokenizer)
        limit = token_limit(job)
        self.greedy = self.beams = None
        if beams:
            self.beams = BeamSearch(
                initial,
                beams=self.config.endpoint_beams,
                eot=eot,
                max_tokens=min(limit, context - len(initial)),
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
        """End the greedy try; return whether its text, or an earlier one, is taken. Else the job is tried again."""
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
        """End a beam search that found ``tokens``; as ``conclude``."""
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
        """Return the function that makes the job's result.

        Args:
            times: of the tokens of the text that is taken; None if it has none.
        """
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
        self.initials[attempt] = initial, self.sot_index
        self.taken = self.fallback.add(attempt)
        return self.taken is not None
