"""A Whisper model on processor cores: one job at a time, each from beginning to end."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import torch

from ...model.align import alignment_cost, attended_times, token_times
from ...model.decoding.beam import beam_search
from ...model.decoding.greedy import GreedyOutput, decode_greedy, score_text
from ...model.whisper.cache import CrossCache
from ...model.whisper.network import Whisper
from ...model.whisper.tokenizer import Tokenizer
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .backend import BackendConfig, SequentialBackend
from .fallback import SEED, Attempt, FallbackState, in_language, initial_tokens, token_limit
from .token_rules import doubts_language, make_rules, pick_language, tokenizer_for
from .window_encoder import WindowEncoder
from .word_times import timed_words

__all__ = ["BackendConfig", "CoreShare", "CpuBackend"]


class CoreShare:
    """Divides ``cores`` among the backends that decode at the same time; a context of each decode."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._decoding = 0

    def __enter__(self) -> None:
        with self._lock:
            self._decoding += 1
            share = max(1, self._cores // self._decoding)
        torch.set_num_threads(share)  # of this thread's operations

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._decoding -= 1


class CpuBackend(SequentialBackend):
    """Decodes one job after the other with ``model``. Used from one thread only.

    Args:
        encoder: of another backend of the same model; several threads may use it at once.
        cores: shared with the other backends of the engine; None leaves the number of threads as it is.
    """

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig | None = None,
        *,
        encoder: WindowEncoder | None = None,
        cores: CoreShare | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config or BackendConfig()
        self.encoder = encoder or WindowEncoder(model)
        self._tokenizer = tokenizer_for(model, None, "transcribe")
        self._rules = make_rules(model, self._tokenizer)
        self._cores: AbstractContextManager[object] = cores or nullcontext()
        self._cache = model.decoder.new_cache(1)
        self._generator = torch.Generator(device=model.device)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        with self._cores, torch.inference_mode():
            return self._decode(job)

    def _decode(self, job: DecodeJob) -> DecodeResult:
        audio, frames = self.encoder(job.audio, self.config.context(job))
        language, probability = self._language(job, audio)
        job = in_language(job, language)
        tokenizer = tokenizer_for(self.model, language, job.task)
        attempt, output = self._try_until_accepted(job, audio, tokenizer)
        words = self._words(job, output, tokenizer, language, frames)
        return attempt.result(words, language, probability)

    def _try_until_accepted(
        self, job: DecodeJob, audio: CrossCache, tokenizer: Tokenizer
    ) -> tuple[Attempt, GreedyOutput]:
        """Decode, warmer each time, until a text is accepted."""
        fallback = FallbackState(job, self.config)
        outputs: dict[Attempt, GreedyOutput] = {}
        while True:
            temperature = fallback.temperature
            output = self._attempt(fallback.job, audio, tokenizer, temperature)
            attempt = Attempt.of(
                job,
                tokenizer,
                tokens=output.tokens,
                logprobs=output.logprobs,
                no_speech_prob=output.no_speech_prob,
                looped=output.looped,
                accepted=output.accepted,
                passes=output.passes,
                temperature=temperature,
            )
            outputs[attempt] = output
            taken = fallback.add(attempt)
            if taken is not None:
                return taken, outputs[taken]

    def _attempt(
        self, job: DecodeJob, audio: CrossCache, tokenizer: Tokenizer, temperature: float
    ) -> GreedyOutput:
        initial, sot = initial_tokens(job, tokenizer)
        limit = token_limit(job)
        if self.config.searches(job, temperature, self.busy_rule):
            return self._beam(job, audio, initial, sot, limit)
        return decode_greedy(
            self.model,
            audio,
            initial,
            self._rules,
            sot_index=sot,
            draft=job.draft,
            max_tokens=limit,
            allow_empty=bool(job.prefix),
            temperature=temperature,
            generator=self._generator.manual_seed(SEED),
            cache=self._cache,
        )

    def _beam(
        self, job: DecodeJob, audio: CrossCache, initial: tuple[int, ...], sot: int, limit: int
    ) -> GreedyOutput:
        tokens = beam_search(
            self.model,
            audio,
            initial,
            self._rules,
            beam_size=self.config.endpoint_beams,
            max_tokens=limit,
            allow_empty=bool(job.prefix),
        )
        return score_text(
            self.model,
            audio,
            initial,
            tokens,
            self._rules,
            sot_index=sot,
            allow_empty=not tokens or bool(job.prefix),
            cache=self._cache,
        )

    def _words(
        self,
        job: DecodeJob,
        output: GreedyOutput,
        tokenizer: Tokenizer,
        language: str,
        frames: int,
    ) -> tuple[DecodedWord, ...]:
        """Return the words after the prefix, timed by the attention of the passes that decoded them."""
        if not output.tokens or output.scores is None:
            return ()
        cost = alignment_cost(output.scores, frames, skip=len(tokenizer.sot_sequence))
        times = token_times(cost)  # one per text token, prefix included, and the end
        attended = attended_times(output.scores[:, len(tokenizer.sot_sequence) + len(job.prefix) :])
        return timed_words(
            tokenizer, language, output.tokens, output.logprobs, times[len(job.prefix) :], attended
        )

    def _language(self, job: DecodeJob, audio: CrossCache) -> tuple[str, float | None]:
        """Return the language to decode in, and its probability if it had to be detected."""
        if not doubts_language(job, self.model):
            return job.language or "en", None
        tokenizer = self._tokenizer
        sot = torch.tensor([[tokenizer.sot]], device=self.model.device)
        hidden, _ = self.model.decoder(sot, torch.zeros_like(sot), self._cache, audio, start=0)
        return pick_language(job, tokenizer, self.model.decoder.logits(hidden[:, 0])[0])
