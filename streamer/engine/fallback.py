"""The tries at one window: the texts that are rejected, the temperature of the next try, the text that is taken.

Source: the fallback of Radford et al. 2022, section 4.5, for text without timestamps. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...model.decoding.fallback import compression_ratio
from ...model.whisper.tokenizer import Tokenizer
from ..config import SAMPLE_RATE
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .backend import BackendConfig

__all__ = ["SEED", "Attempt", "FallbackState", "in_language", "initial_tokens", "token_limit"]

SEED = 0  # of sampling at temperatures above 0
_TOKENS_PER_SECOND = 14.0  # of audio; more is a runaway


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """One text for a window, and how likely it is."""

    tokens: tuple[int, ...]  # after the prefix
    logprobs: tuple[float, ...]  # of each of them, and of end-of-text if it was reached
    no_speech_prob: float
    looped: bool
    accepted: int  # draft tokens confirmed
    passes: int
    temperature: float
    compression_ratio: float

    @classmethod
    def of(
        cls,
        job: DecodeJob,
        tokenizer: Tokenizer,
        *,
        tokens: list[int],
        logprobs: list[float],
        no_speech_prob: float,
        looped: bool,
        accepted: int,
        passes: int,
        temperature: float,
    ) -> Attempt:
        """Return the attempt at ``job`` that gave ``tokens``."""
        return cls(
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            no_speech_prob=no_speech_prob,
            looped=looped,
            accepted=accepted,
            passes=passes,
            temperature=temperature,
            compression_ratio=compression_ratio(tokenizer.decode([*job.prefix, *tokens])),
        )

    @property
    def avg_logprob(self) -> float:
        """The mean log-probability of the tokens, end-of-text included."""
        return sum(self.logprobs) / max(1, len(self.logprobs))

    def result(
        self,
        words: tuple[DecodedWord, ...],
        language: str,
        probability: float | None,
    ) -> DecodeResult:
        """Return the job's result, if this text is taken."""
        return DecodeResult(
            tokens=self.tokens,
            words=words,
            language=language,
            language_probability=probability,
            avg_logprob=self.avg_logprob,
            no_speech_prob=self.no_speech_prob,
            compression_ratio=self.compression_ratio,
            temperature=self.temperature,
            looped=self.looped,
            accepted_draft=self.accepted,
            steps=self.passes,
        )


class FallbackState:
    """The tries of one job: temperature 0; an endpoint whose text is rejected is tried again, warmer.

    Where every try fails, the likeliest text that does not repeat itself is taken: at high
    temperatures, noise gives nonsense.
    """

    def __init__(self, job: DecodeJob, config: BackendConfig) -> None:
        self.job = job  # of the next try
        self._policy = config.fallback
        self._temperatures = config.temperatures if job.endpoint else (0.0,)
        self._attempts: list[Attempt] = []

    @property
    def temperature(self) -> float:
        """The temperature of the next try."""
        return self._temperatures[len(self._attempts)]

    def add(self, attempt: Attempt) -> Attempt | None:
        """Return the attempt to take; None if ``job`` is to be tried once more, at ``temperature``."""
        self._attempts.append(attempt)
        if not self._policy.has_failed(attempt, looped=attempt.looped):
            return attempt
        if len(self._attempts) < len(self._temperatures):
            if self._repeats(attempt):
                self.job = replace(self.job, prompt=())  # what a loop often feeds on
            return None
        steady = [one for one in self._attempts if not self._repeats(one)]
        return max(steady or self._attempts, key=lambda one: one.avg_logprob)

    def _repeats(self, attempt: Attempt) -> bool:
        return attempt.looped or self._policy.repeats(attempt)


def in_language(job: DecodeJob, language: str) -> DecodeJob:
    """Return ``job``, to be decoded in ``language``: another one than before makes prompt and draft useless."""
    if job.language is None or language == job.language:
        return job
    return replace(job, prompt=(), draft=())


def initial_tokens(job: DecodeJob, tokenizer: Tokenizer) -> tuple[tuple[int, ...], int]:
    """Return the tokens before the text, and the index of ``<|startoftranscript|>`` in them."""
    prompt = (tokenizer.sot_prev, *job.prompt) if job.prompt else ()
    sot = tokenizer.sot_sequence_including_notimestamps
    return (*prompt, *sot, *job.prefix), len(prompt)


def token_limit(job: DecodeJob) -> int:
    """Return the number of tokens that may follow the prefix: more is a runaway."""
    seconds = len(job.audio) / SAMPLE_RATE
    return max(0, 12 + round(seconds * _TOKENS_PER_SECOND) - len(job.prefix))
