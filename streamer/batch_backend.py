"""Runs the decode jobs of many streams together on one GPU: rows join and leave between decoder steps.

A job passes through these stages; every stage takes all rows that have come to it, in one batch:

    admit: audio ─► encoder ─► its slot     open: language, prompt and draft in one pass
    step: a few tokens each, as often as it takes     close: the attention of its last token
    align: word times of the rows that are done

The result of a job does not depend on what is decoded beside it (but for the rounding of sums), and is
that of ``WhisperBackend`` without beams. Used from one thread only; the words of a result are made by
whoever calls the ``Outcome``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import torch

from ..model.batch_align import RowTimes, Span, align_rows
from ..model.greedy_row import GreedyRow
from ..model.packed_encoder import PackedEncoder, encoder_positions
from ..model.slot_decoder import Choices, Feed, SlotDecoder
from ..model.slot_kernels import SlotKernels
from ..model.tokenizer import Tokenizer
from ..model.whisper import Whisper
from .attempts import Attempt, Ladder, initial_tokens, token_limit
from .backend_config import BackendConfig
from .features import padded_samples, silence_states
from .jobs import DecodeJob, DecodeResult
from .rules import doubts_language, make_rules, pick_language, tokenizer_for
from .timed_words import timed_words

__all__ = ["BatchBackend", "Outcome"]

K = TypeVar("K", bound=Hashable)

Outcome = Callable[[], DecodeResult]  # may be called from any thread

_PREFILL_TOKENS = 16_384  # run at once, padding included
_ALIGNED_AT_ONCE = 16  # rows that are done wait for as many, unless nothing else goes on
_STRAGGLERS = 4  # new audio is taken when no more than a quarter of the slots, or so many, are busy
_WAVE_WORK = 2e13  # floating-point operations
_POSITION = 320  # samples
_SECOND = 16_000


@dataclass(slots=True, eq=False)
class _Row(Generic[K]):
    """A job in its slot."""

    key: K
    job: DecodeJob
    slot: int
    frames: int  # audio positions of the audio itself
    positions: int  # that are encoded
    tail: int
    ladder: Ladder
    language: str = "en"
    probability: float | None = None
    tokenizer: Tokenizer | None = None
    greedy: GreedyRow | None = None  # the try that goes on
    sot: int = 0
    temperature: float = 0.0
    no_speech_prob: float = 0.0
    initials: dict[Attempt, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    taken: Attempt | None = None
    span: Span | None = None


class BatchBackend(Generic[K]):
    """``slots``: jobs in flight at once. ``graphs``, ``kernels``: see ``SlotDecoder``."""

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig | None = None,
        *,
        slots: int = 64,
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        self.model = model
        self.config = config or BackendConfig()
        self._tokenizer = tokenizer_for(model, None, "transcribe")
        rules = make_rules(model, self._tokenizer)
        barred = rules.suppressed.repeat(2, 1)
        barred[1, list(rules.blank)] = -torch.inf
        with torch.inference_mode():
            silence = silence_states(model)
            self._encoder = PackedEncoder(model, kernels)
            self._decoder = SlotDecoder(
                model,
                slots=slots,
                barred=barred,
                no_speech=rules.no_speech,
                silence=[(k[0], v[0]) for k, v in zip(silence.k, silence.v, strict=True)],
                graphs=graphs,
                kernels=kernels,
            )
        self._eot = rules.eot
        self._free = list(range(slots))
        self._new: list[_Row[K]] = []  # to be opened
        self._active: list[_Row[K]] = []
        self._closing: list[_Row[K]] = []
        self._done: list[_Row[K]] = []  # to be aligned
        self.passes = 0  # of the decoder
        self.rows_run = 0  # rows of all passes

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def idle(self) -> bool:
        return len(self._free) == self._decoder.slots

    @property
    def room(self) -> int:
        """Jobs that ``admit`` takes now. Few stragglers are better joined than waited for; many are not:
        the encoder would hold them up."""
        busy = len(self._new) + len(self._active)
        if busy > max(_STRAGGLERS, self._decoder.slots // 4):
            return 0
        return len(self._free)

    @property
    def wave_seconds(self) -> float:
        """Of audio encoded at once: about 50 ms of work for a large GPU."""
        dims = self.model.dims
        # of a second: 50 positions through matrices of 12 D^2 numbers a layer, a product and a sum each
        work = 50 * 24 * dims.n_audio_layer * dims.n_audio_state**2
        return max(60.0, _WAVE_WORK / work)

    def warm_up(self) -> None:
        """Compiles and captures, so that no user waits for that."""
        with torch.inference_mode():
            self._decoder.warm_up()
        noise = np.random.default_rng(0).normal(0.0, 0.01, 3 * _SECOND).astype(np.float32)
        jobs = [
            DecodeJob(audio=noise[: seconds * _SECOND], language="en", draft=(1, 2, 3))
            for seconds in (1, 2, 3)
        ]
        self.decode(jobs)

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order. Only while nothing else is admitted."""
        numbers: BatchBackend[int] = self  # type: ignore[assignment]
        waiting = list(enumerate(jobs))
        results: dict[int, DecodeResult] = {}
        while len(results) < len(jobs):
            room = numbers.room
            numbers.admit(waiting[:room])
            del waiting[:room]
            for number, outcome in numbers.advance():
                results[number] = outcome()
        return [results[number] for number in range(len(jobs))]

    @torch.inference_mode()
    def admit(self, jobs: Sequence[tuple[K, DecodeJob]]) -> None:
        """Encodes the audio of at most ``room`` jobs. Where that fails, none of them was taken."""
        if not jobs:
            return
        rows = [
            self._seat(key, job, slot) for (key, job), slot in zip(jobs, self._free, strict=False)
        ]
        lengths = [row.positions * _POSITION for row in rows]
        features = self._encoder([row.job.audio for row in rows], lengths)
        self._decoder.enter(features, [(row.slot, row.positions, row.tail > 0) for row in rows])
        del self._free[: len(rows)]
        self._new += rows

    @torch.inference_mode()
    def advance(self) -> list[tuple[K, Outcome]]:
        """Runs one decoder pass over the rows that wait for one -> the jobs that are done by then."""
        if self._new:
            self._open()
        elif self._active or self._closing:
            self._step()
        waiting = self._new or self._active or self._closing
        if not self._done or (waiting and len(self._done) < _ALIGNED_AT_ONCE):
            return []
        return self._align()

    def abandon(self) -> list[K]:
        """After a failure: forgets all jobs, and says which they were."""
        rows = [*self._new, *self._active, *self._closing, *self._done]
        for kept in (self._new, self._active, self._closing, self._done):
            kept.clear()
        self._free = list(range(self._decoder.slots))
        return [row.key for row in rows]

    # Stages

    def _seat(self, key: K, job: DecodeJob, slot: int) -> _Row[K]:
        context = self.config.final_context if job.final else self.config.update_context
        positions = encoder_positions(padded_samples(len(job.audio), context))
        whole = positions >= self.model.dims.n_audio_ctx
        return _Row(
            key,
            job,
            slot,
            frames=min(-(-len(job.audio) // _POSITION), positions),
            positions=positions,
            tail=0 if whole else self._decoder.tail,
            ladder=Ladder(job, self.config),
        )

    def _open(self) -> None:
        """Languages, then the first pass of new tries."""
        rows, self._new = self._new, []
        self._learn_languages([row for row in rows if row.tokenizer is None])
        # rows of like length are padded least
        rows.sort(key=lambda row: len(self._begin(row).feed()))
        at = 0
        while at < len(rows):
            width = len(_try(rows[at]).feed())
            take = 1
            while at + take < len(rows):
                width = max(width, len(_try(rows[at + take]).feed()))
                if width * (take + 1) > _PREFILL_TOKENS:
                    break
                take += 1
            self._prefill(rows[at : at + take])
            at += take

    def _prefill(self, rows: Sequence[_Row[K]]) -> None:
        feeds = [
            Feed(
                slot=row.slot,
                tokens=_try(row).feed(),
                start=0,
                first=len(_try(row).initial) - 1,
                opening=not row.job.prefix,
                temperature=row.temperature,
                seed=self._seed(row),
                sot=row.sot,
            )
            for row in rows
        ]
        for row, choices in zip(rows, self._count(self._decoder.prefill(feeds)), strict=True):
            row.no_speech_prob = choices.no_speech_prob or 0.0
            self._take(row, choices)

    def _step(self) -> None:
        rows = self._active
        closing, self._closing = self._closing, []
        self._active = []
        feeds = [
            Feed(
                slot=row.slot,
                tokens=_try(row).feed(self._decoder.widest),
                start=_try(row).start,
                temperature=row.temperature,
                seed=self._seed(row),
            )
            for row in rows
        ]
        # the last token was chosen but never fed: alignment wants its queries, to end the last word
        feeds += [
            Feed(slot=row.slot, tokens=[_try(row).tokens[-1]], start=_try(row).length - 1)
            for row in closing
        ]
        answers = self._count(self._decoder.step(feeds))
        for row, choices in zip(rows, answers, strict=False):
            self._take(row, choices)
        self._done += closing

    def _count(self, answers: list[Choices]) -> list[Choices]:
        self.passes += 1
        self.rows_run += len(answers)
        return answers

    def _take(self, row: _Row[K], choices: Choices) -> None:
        greedy = _try(row)
        greedy.take(choices.tokens, choices.logprobs)
        if not greedy.done:
            self._active.append(row)
            return
        assert row.tokenizer is not None
        attempt = Attempt.of(
            row.job,
            row.tokenizer,
            tokens=greedy.tokens,
            logprobs=greedy.logprobs,
            no_speech_prob=row.no_speech_prob,
            looped=greedy.looped,
            accepted=greedy.accepted,
            passes=greedy.passes,
            temperature=row.temperature,
        )
        row.initials[attempt] = greedy.initial, row.sot
        row.taken = row.ladder.add(attempt)
        if row.taken is None:
            self._new.append(row)
        elif row.taken is attempt:
            self._finish(row)
        else:
            self._look_again(row, row.taken)

    def _finish(self, row: _Row[K]) -> None:
        greedy = _try(row)
        row.span = Span(
            slot=row.slot,
            first=row.sot,
            end=greedy.length,
            frames=row.frames,
            positions=row.positions,
            tail=row.tail,
        )
        if greedy.tokens and not greedy.ended:
            self._closing.append(row)
        else:
            self._done.append(row)

    def _look_again(self, row: _Row[K], attempt: Attempt) -> None:
        """An earlier try is taken: its attention was overwritten by later ones."""
        initial, row.sot = row.initials[attempt]
        tokens = [*initial, *attempt.tokens]
        self._count(
            self._decoder.prefill(
                [Feed(slot=row.slot, tokens=tokens, start=0, first=len(tokens) - 1)]
            )
        )
        row.span = Span(
            slot=row.slot,
            first=row.sot,
            end=len(tokens),
            frames=row.frames,
            positions=row.positions,
            tail=row.tail,
        )
        self._done.append(row)

    def _align(self) -> list[tuple[K, Outcome]]:
        rows, self._done = self._done, []
        skip = len(self._tokenizer.sot_sequence)
        spoken = [row for row in rows if row.taken is not None and row.taken.tokens]
        spans = [row.span for row in spoken if row.span is not None]
        times = align_rows(self._decoder, spans, skip=skip) if spans else []
        found = {row.slot: one for row, one in zip(spoken, times, strict=True)}
        self._free += [row.slot for row in rows]
        return [(row.key, _outcome(row, found.get(row.slot))) for row in rows]

    # Inside

    def _learn_languages(self, rows: Sequence[_Row[K]]) -> None:
        doubted = [row for row in rows if doubts_language(row.job, self.model)]
        if doubted:
            logits = self._decoder.language_logits(
                [row.slot for row in doubted], self._tokenizer.sot
            ).cpu()
            for row, one in zip(doubted, logits, strict=True):
                row.language, row.probability = pick_language(row.job, self._tokenizer, one)
                if row.job.language is not None and row.language != row.job.language:
                    # both are in the language of before
                    row.job = replace(row.job, prompt=(), draft=())
                    row.ladder = Ladder(row.job, self.config)
        for row in rows:
            if row.probability is None:
                row.language = row.job.language or "en"
            row.tokenizer = tokenizer_for(self.model, row.language, row.job.task)

    def _begin(self, row: _Row[K]) -> GreedyRow:
        """The next try of ``row``."""
        assert row.tokenizer is not None
        job, row.temperature = row.ladder.job, row.ladder.temperature
        initial, row.sot = initial_tokens(job, row.tokenizer)
        row.greedy = GreedyRow(
            initial,
            eot=self._eot,
            context=self.model.dims.n_text_ctx,
            draft=job.draft if row.temperature == 0.0 else (),
            max_tokens=token_limit(job, self.config),
        )
        return row.greedy

    def _seed(self, row: _Row[K]) -> int:
        """Of sampling: another at every place, and the same whatever is decoded beside it."""
        return self.config.seed + _try(row).length


def _try(row: _Row[K]) -> GreedyRow:
    assert row.greedy is not None
    return row.greedy


def _outcome(row: _Row[K], times: RowTimes | None) -> Outcome:
    attempt, tokenizer = row.taken, row.tokenizer
    assert attempt is not None
    assert tokenizer is not None
    job, language, probability = row.job, row.language, row.probability

    def result() -> DecodeResult:
        words = (
            timed_words(
                tokenizer,
                language,
                attempt.tokens,
                attempt.logprobs,
                times.starts[len(job.prefix) :],
                times.attended[len(job.prefix) :],
            )
            if times is not None
            else ()
        )
        return DecodeResult(
            tokens=attempt.tokens,
            words=words,
            language=language,
            language_probability=probability,
            avg_logprob=attempt.avg_logprob,
            no_speech_prob=attempt.no_speech_prob,
            compression_ratio=attempt.compression_ratio,
            temperature=attempt.temperature,
            looped=attempt.looped,
            accepted_draft=attempt.accepted,
            steps=attempt.passes,
        )

    return result
