"""Runs decode jobs on a Whisper model. Used from one thread only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from ..model.align import alignment_cost, attended_times, token_times
from ..model.beam import beam_search, judge
from ..model.cache import CrossCache
from ..model.compression import compression_ratio
from ..model.greedy import GreedyOutput, GreedyRules, decode_greedy
from ..model.tokenizer import Tokenizer, get_tokenizer
from ..model.whisper import Whisper
from ..model.words import merge_punctuations, split_to_word_tokens
from .config import SAMPLE_RATE
from .features import ContextMode, WindowEncoder
from .jobs import DecodedWord, DecodeJob, DecodeResult

__all__ = ["BackendConfig", "WhisperBackend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a final decode
    compression_ratio_threshold: float = 2.4  # above: the text repeats itself
    logprob_threshold: float = -1.0  # below: the text is unlikely
    no_speech_threshold: float = 0.6  # above: an unlikely text is silence, not a failure
    tokens_per_second: float = 14.0  # of audio; more is a runaway
    update_context: ContextMode = "trimmed"
    final_context: ContextMode = "full"
    final_beams: int = 5  # of the first try of a final decode; 1: greedy
    seed: int = 0  # of sampling at temperatures above 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    output: GreedyOutput
    text: str
    avg_logprob: float
    compression_ratio: float
    temperature: float


class WhisperBackend:
    """``encoder``: that of another backend of the same model, which two threads may use at once."""

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig | None = None,
        *,
        encoder: WindowEncoder | None = None,
    ) -> None:
        self.model = model
        self.config = config or BackendConfig()
        self.encoder = encoder or WindowEncoder(model)
        self._tokenizer = self._tokenizer_for(None, "transcribe")
        self._rules = self._make_rules(self._tokenizer)
        self._cache = model.decoder.new_cache(1)
        self._generator = torch.Generator(device=model.device)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @torch.inference_mode()
    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order. A row does not depend on the others."""
        return [self._decode_one(job) for job in jobs]

    def _decode_one(self, job: DecodeJob) -> DecodeResult:
        started = time.perf_counter()
        context = self.config.final_context if job.final else self.config.update_context
        audio, frames = self.encoder(job.audio, context)
        encoded = time.perf_counter()
        language, probability = self._language(job, audio)
        if job.language is not None and language != job.language:
            job = replace(job, prompt=(), draft=())  # both are in the language of before
        tokenizer = self._tokenizer_for(language, job.task)
        attempt = self._attempt_ladder(job, audio, tokenizer)
        decoded = time.perf_counter()
        words = self._words(job, attempt.output, tokenizer, language, frames)
        return DecodeResult(
            tokens=tuple(attempt.output.tokens),
            words=words,
            language=language,
            language_probability=probability,
            avg_logprob=attempt.avg_logprob,
            no_speech_prob=attempt.output.no_speech_prob,
            compression_ratio=attempt.compression_ratio,
            temperature=attempt.temperature,
            looped=attempt.output.looped,
            accepted_draft=attempt.output.accepted,
            steps=attempt.output.passes,
            timings={
                "encode": encoded - started,
                "decode": decoded - encoded,
                "align": time.perf_counter() - decoded,
            },
        )

    def _attempt_ladder(self, job: DecodeJob, audio: CrossCache, tokenizer: Tokenizer) -> _Attempt:
        """Decodes at temperature 0; a final job whose text fails the checks is tried again, warmer.

        Where every try fails, the likeliest text that does not repeat itself is taken: at high
        temperatures, noise gives nonsense.
        """
        temperatures = self.config.temperatures if job.final else (0.0,)
        attempts: list[_Attempt] = []
        for temperature in temperatures:
            attempts.append(self._attempt(job, audio, tokenizer, temperature))
            if not self._failed(attempts[-1]):
                return attempts[-1]
            if self._repeats(attempts[-1]):
                job = replace(job, prompt=())  # what a loop often feeds on
        steady = [attempt for attempt in attempts if not self._repeats(attempt)]
        return max(steady or attempts, key=lambda attempt: attempt.avg_logprob)

    def _repeats(self, attempt: _Attempt) -> bool:
        return (
            attempt.output.looped
            or attempt.compression_ratio > self.config.compression_ratio_threshold
        )

    def _failed(self, attempt: _Attempt) -> bool:
        if self._repeats(attempt):
            return True
        unlikely = attempt.avg_logprob < self.config.logprob_threshold
        silence = attempt.output.no_speech_prob > self.config.no_speech_threshold
        return unlikely and not silence

    def _attempt(
        self, job: DecodeJob, audio: CrossCache, tokenizer: Tokenizer, temperature: float
    ) -> _Attempt:
        sot = tokenizer.sot_sequence_including_notimestamps
        prompt = (tokenizer.sot_prev, *job.prompt) if job.prompt else ()
        initial = (*prompt, *sot, *job.prefix)
        seconds = len(job.audio) / SAMPLE_RATE
        limit = max(0, 12 + round(seconds * self.config.tokens_per_second) - len(job.prefix))
        if job.final and temperature == 0.0 and self.config.final_beams > 1:
            output = self._beam(job, audio, initial, len(prompt), limit)
            return self._judged(job, output, tokenizer, temperature)
        output = decode_greedy(
            self.model,
            audio,
            initial,
            self._rules,
            sot_index=len(prompt),
            draft=job.draft,
            max_tokens=limit,
            allow_empty=bool(job.prefix),
            temperature=temperature,
            generator=self._generator.manual_seed(self.config.seed),
            cache=self._cache,
        )
        return self._judged(job, output, tokenizer, temperature)

    def _beam(
        self, job: DecodeJob, audio: CrossCache, initial: tuple[int, ...], sot: int, limit: int
    ) -> GreedyOutput:
        tokens = beam_search(
            self.model,
            audio,
            initial,
            self._rules,
            beam_size=self.config.final_beams,
            max_tokens=limit,
            allow_empty=bool(job.prefix),
        )
        return judge(
            self.model,
            audio,
            initial,
            tokens,
            self._rules,
            sot_index=sot,
            allow_empty=not tokens or bool(job.prefix),
            cache=self._cache,
        )

    def _judged(
        self, job: DecodeJob, output: GreedyOutput, tokenizer: Tokenizer, temperature: float
    ) -> _Attempt:
        text = tokenizer.decode([*job.prefix, *output.tokens])
        return _Attempt(
            output=output,
            text=text,
            avg_logprob=sum(output.logprobs) / max(1, len(output.logprobs)),
            compression_ratio=compression_ratio(text),
            temperature=temperature,
        )

    def _words(
        self,
        job: DecodeJob,
        output: GreedyOutput,
        tokenizer: Tokenizer,
        language: str,
        frames: int,
    ) -> tuple[DecodedWord, ...]:
        """The words after the prefix, timed by the attention of the passes that decoded them."""
        if not output.tokens or output.scores is None:
            return ()
        cost = alignment_cost(output.scores, frames, skip=len(tokenizer.sot_sequence))
        times = token_times(cost)  # one per text token, prefix included, and the end
        attended = attended_times(output.scores[:, len(tokenizer.sot_sequence) + len(job.prefix) :])
        pieces, piece_tokens = split_to_word_tokens(tokenizer, output.tokens, language)
        edges = np.cumsum([0, *(len(tokens) for tokens in piece_tokens)])  # in output.tokens
        words: list[DecodedWord] = []
        for merged in merge_punctuations(pieces):
            core_start, core_end = int(edges[merged.core]), int(edges[merged.core + 1])
            tokens = tuple(token for i in merged.members for token in piece_tokens[i])
            logprobs = output.logprobs[core_start:core_end]
            words.append(
                DecodedWord(
                    text=merged.text,
                    tokens=tokens,
                    start=float(times[len(job.prefix) + core_start]),
                    end=float(times[len(job.prefix) + core_end]),
                    probability=float(np.mean(np.exp(logprobs))),
                    attended=float(attended[core_start:core_end].max()),
                )
            )
        return tuple(words)

    def _language(self, job: DecodeJob, audio: CrossCache) -> tuple[str, float | None]:
        """The language to decode in, and its probability where it had to be detected."""
        if not self.model.is_multilingual:
            return "en", None
        if job.language is not None and job.switch_above is None:
            return job.language, None
        chances = self._language_chances(audio)
        if job.languages:
            chances = {code: chances[code] for code in job.languages if code in chances}
        best = max(chances, key=chances.__getitem__)
        if job.language is not None and chances[best] < (job.switch_above or 0.0):
            best = job.language
        return best, chances.get(best)

    def _language_chances(self, audio: CrossCache) -> dict[str, float]:
        tokenizer = self._tokenizer
        sot = torch.tensor([[tokenizer.sot]], device=self.model.device)
        hidden, _ = self.model.decoder(sot, torch.zeros_like(sot), self._cache, audio, start=0)
        logits = self.model.decoder.logits(hidden[:, 0])[0, list(tokenizer.all_language_tokens)]
        chances = logits.softmax(dim=-1).tolist()
        return dict(zip(tokenizer.all_language_codes, chances, strict=True))

    def _tokenizer_for(
        self, language: str | None, task: Literal["transcribe", "translate"]
    ) -> Tokenizer:
        multilingual = self.model.is_multilingual
        return get_tokenizer(
            multilingual,
            num_languages=self.model.num_languages if multilingual else 99,
            language=language if multilingual else None,
            task=task if multilingual else None,
        )

    def _make_rules(self, tokenizer: Tokenizer) -> GreedyRules:
        suppressed = torch.zeros(self.model.dims.n_vocab, device=self.model.device)
        suppressed[list(tokenizer.non_speech_tokens)] = -torch.inf
        # every special token and timestamp lies above end-of-text: none belongs in the text
        suppressed[tokenizer.eot + 1 :] = -torch.inf
        return GreedyRules(
            suppressed=suppressed,
            blank=(*tokenizer.encode(" "), tokenizer.eot),
            eot=tokenizer.eot,
            no_speech=tokenizer.no_speech,
        )
