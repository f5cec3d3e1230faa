"""Runs the decode jobs of many streams together on one GPU: rows join and leave between decoder steps.

A job passes through these stages; every stage takes all rows that have come to it, in one batch:

    admit: audio ─► encoder ─► its slot     open: language, prompt and draft in one pass
    step: a few tokens each, as often as it takes; beams beside them
    close: the attention of the last token     align: word times of the rows that are done

The result of a job does not depend on what is decoded beside it (but for the rounding of sums), and is
that of ``WhisperBackend``. Used from one thread only; the words of a result are made by whoever calls the
``Outcome``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch

from ..model.batch_align import RowTimes, Span, align_rows
from ..model.packed_encoder import EncoderRun, PackedEncoder, encoder_positions
from ..model.slot_decoder import Choices, Feed, SlotDecoder
from ..model.slot_kernels import SlotKernels
from ..model.tokenizer import Tokenizer
from ..model.whisper import Whisper
from .attempts import Ladder
from .backend_config import BackendConfig
from .batch_row import BatchRow
from .features import padded_samples, silence_states
from .jobs import DecodeJob, DecodeResult
from .rules import doubts_language, make_rules, pick_language, tokenizer_for
from .timed_words import timed_words

__all__ = ["BatchBackend", "Outcome"]

K = TypeVar("K", bound=Hashable)

Outcome = Callable[[], DecodeResult]  # may be called from any thread

_PREFILL_TOKENS = 16_384  # run at once, padding included
_ALIGNED_AT_ONCE = 16  # rows that are done wait for as many, unless nothing else goes on
_WAVE_WORK = 4e13  # floating-point operations encoded at once
_SLICE_WORK = 2e12  # and of them, between two decoder passes of many rows
_FEW = 64  # rows; fewer can wait longer
_POSITION = 320  # samples
_SECOND = 16_000


class BatchBackend(Generic[K]):
    """``slots``: jobs in flight at once. ``searches``: beam searches at once; an endpoint that finds them all
    taken is decoded greedily: when so many sentences end together, all of them wait for each.
    ``graphs``, ``kernels``: see ``SlotDecoder``.
    """

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig | None = None,
        *,
        slots: int = 64,
        searches: int = 8,
        graphs: bool = True,
        kernels: SlotKernels | None = None,
    ) -> None:
        self.model = model
        self.config = config or BackendConfig()
        self._tokenizer = tokenizer_for(model, None, "transcribe")
        rules = make_rules(model, self._tokenizer)
        barred = rules.suppressed.repeat(2, 1)
        barred[1, list(rules.blank)] = -torch.inf
        beams = self.config.final_beams
        # each beam but the first, which has the slot of its row
        spare = (beams - 1) * searches
        with torch.inference_mode():
            silence = silence_states(model)
            self._encoder = PackedEncoder(model, kernels)
            self._decoder = SlotDecoder(
                model,
                windows=slots,
                texts=slots + spare,
                barred=barred,
                no_speech=rules.no_speech,
                silence=[(k[0], v[0]) for k, v in zip(silence.k, silence.v, strict=True)],
                beams=beams,
                graphs=graphs,
                kernels=kernels,
            )
        self._decoder.meanwhile = self._encode_on
        self._slots = slots
        self._texts = slots + spare
        self._eot = rules.eot
        self._reset()
        self.passes = 0  # of the decoder
        self.rows_run = 0  # rows of all passes

    def _reset(self) -> None:
        self._free = list(range(self._slots))
        self._free_texts = list(range(self._slots, self._texts))
        self._running = 0  # rows of the last step
        self._encoding: tuple[EncoderRun, list[BatchRow[K]]] | None = None
        self._new: list[BatchRow[K]] = []  # to be opened
        self._active: list[BatchRow[K]] = []
        self._beamed: list[BatchRow[K]] = []
        self._closing: list[BatchRow[K]] = []
        self._done: list[BatchRow[K]] = []  # to be aligned

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def idle(self) -> bool:
        return len(self._free) == self._slots

    @property
    def room(self) -> int:
        """Jobs that ``admit`` takes now: none while others are being encoded."""
        return len(self._free) if self._encoding is None else 0

    @property
    def wave_seconds(self) -> float:
        """Of audio encoded at once: about 90 ms of work for a large GPU."""
        # a second is 50 positions
        return max(60.0, _WAVE_WORK / (50 * self._layer_work * self.model.dims.n_audio_layer))

    @property
    def _layer_work(self) -> int:
        """Of an encoder layer, for each position: matrices of 12 D^2 numbers, a product and a sum each."""
        return 24 * self.model.dims.n_audio_state**2

    def warm_up(self) -> None:
        """Compiles and captures, so that no user waits for that."""
        with torch.inference_mode():
            self._decoder.warm_up()
        noise = np.random.default_rng(0).normal(0.0, 0.01, 3 * _SECOND).astype(np.float32)
        job = DecodeJob(audio=noise, language="en")
        # first passes of all widths that kernels are compiled for, of one row and of several, endpoints
        for tokens in (1, 10, 20, 100):
            drafted = replace(job, draft=(1,) * tokens)
            self.decode([drafted])
            self.decode([drafted, replace(drafted, audio=noise[:_SECOND])])
        self.decode([replace(job, final=True), job])

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
        """Begins to encode the audio of at most ``room`` jobs. Where that fails, none of them was taken."""
        if not jobs:
            return
        slots = self._free[: len(jobs)]
        rows = [self._seat(key, job, slot) for (key, job), slot in zip(jobs, slots, strict=True)]
        lengths = [row.positions * _POSITION for row in rows]
        self._encoding = self._encoder.start([row.job.audio for row in rows], lengths), rows
        del self._free[: len(rows)]

    @torch.inference_mode()
    def advance(self) -> list[tuple[K, Outcome]]:
        """Runs one decoder pass over the rows that wait for one -> the jobs that are done by then."""
        going = self._new or self._active or self._beamed or self._closing
        if self._encoding is not None and (self._encoding[0].done or not going):
            run, rows = self._encoding
            windows = [(row.slot, row.positions, row.tail > 0) for row in rows]
            self._decoder.caches.enter(run.finish(), windows)
            self._new += rows
            self._encoding = None
        if self._new:
            self._open()
        elif self._active or self._closing or self._beamed:
            self._step()
        going = self._new or self._active or self._beamed or self._closing
        if not self._done or (going and len(self._done) < _ALIGNED_AT_ONCE):
            return []
        return self._align()

    def _encode_on(self) -> None:
        """A few layers more of the next windows: the device has work while the host looks at answers.

        The fewer rows are decoded meanwhile, the more.
        """
        if self._encoding is None:
            return
        run = self._encoding[0]
        rows = self._running
        work = _SLICE_WORK * max(1.0, _FEW / max(1, rows))
        run.advance(max(1, round(work / (run.positions * self._layer_work))))

    def abandon(self) -> list[K]:
        """After a failure: forgets all jobs, and says which they were."""
        encoding = [] if self._encoding is None else self._encoding[1]
        rows = [
            *encoding,
            *self._new,
            *self._active,
            *self._beamed,
            *self._closing,
            *self._done,
        ]
        self._reset()
        return [row.key for row in rows]

    # Stages

    def _seat(self, key: K, job: DecodeJob, slot: int) -> BatchRow[K]:
        context = self.config.final_context if job.final else self.config.update_context
        positions = encoder_positions(padded_samples(len(job.audio), context))
        whole = positions >= self.model.dims.n_audio_ctx
        return BatchRow(
            key=key,
            job=job,
            slot=slot,
            frames=min(-(-len(job.audio) // _POSITION), positions),
            positions=positions,
            tail=0 if whole else self._decoder.caches.tail,
            ladder=Ladder(job, self.config),
            config=self.config,
        )

    def _open(self) -> None:
        """Languages, then the first pass of new tries."""
        rows, self._new = self._new, []
        self._learn_languages([row for row in rows if row.tokenizer is None])
        able = len(self._free_texts) // max(1, self.config.final_beams - 1)
        beamed = [row for row in rows if row.wants_beams][:able]
        greedy = [row for row in rows if row not in beamed]
        for row in rows:
            row.begin(self._eot, self.model.dims.n_text_ctx, beams=row in beamed)
        greedy.sort(key=lambda row: len(row.current.feed()))  # rows of like length are padded least
        for part in _parts([len(row.current.feed()) for row in greedy]):
            self._prefill(greedy[part])
        if beamed:
            self._open_beams(beamed)

    def _prefill(self, rows: Sequence[BatchRow[K]]) -> None:
        feeds = [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=row.current.feed(),
                start=0,
                first=len(row.current.initial) - 1,
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
        rows, self._active = self._active, []
        closing, self._closing = self._closing, []
        feeds = [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=row.current.feed(self._decoder.widest),
                start=row.current.start,
                temperature=row.temperature,
                seed=self._seed(row),
            )
            for row in rows
        ]
        # the last token was chosen but never fed: alignment wants its queries, to end the last word
        feeds += [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=[row.current.tokens[-1]],
                start=row.current.length - 1,
            )
            for row in closing
        ]
        beamed, self._beamed = self._beamed, []
        beams = [
            Feed(text=text, window=row.slot, tokens=[token], start=row.beams.length)
            for row in beamed
            if row.beams is not None
            for text, token in zip(row.beam_texts, row.beams.last, strict=True)
        ]
        self._running = len(feeds) + len(beams)
        chosen, ranked = self._decoder.step(feeds, beams)
        self._count([*chosen, *ranked])
        for row, choices in zip(rows, chosen, strict=False):
            self._take(row, choices)
        self._done += closing
        if beamed:
            rankings = iter(ranked)
            self._spread(beamed, [[next(rankings) for _ in row.beam_texts] for row in beamed])

    def _take(self, row: BatchRow[K], choices: Choices) -> None:
        greedy = row.current
        greedy.take(choices.tokens, choices.logprobs)
        if not greedy.done:
            self._active.append(row)
            return
        last = row.taken
        if not row.conclude():
            self._new.append(row)
            return
        assert row.taken is not None and last is None
        if row.initials[row.taken][0] is not greedy.initial:
            self._judge(
                [row]
            )  # an earlier try is taken: its attention was overwritten by later ones
            return
        row.end = greedy.length
        (self._closing if greedy.tokens and not greedy.ended else self._done).append(row)

    # Beams

    def _open_beams(self, rows: Sequence[BatchRow[K]]) -> None:
        feeds = []
        for row in rows:
            assert row.beams is not None
            row.beam_texts = [row.slot, *self._free_texts[: self.config.final_beams - 1]]
            del self._free_texts[: self.config.final_beams - 1]
            feeds.append(
                Feed(
                    text=row.slot,
                    window=row.slot,
                    tokens=row.beams.initial,
                    start=0,
                    opening=not row.job.prefix,
                )
            )
        self._spread(rows, [[ranking] for ranking in self._count(self._decoder.open_beams(feeds))])

    def _spread(self, rows: Sequence[BatchRow[K]], rankings: Sequence[Sequence[Choices]]) -> None:
        """Beams go on from where the likeliest came from; rows whose search has ended are judged."""
        sources: list[int] = []
        targets: list[int] = []
        length = 0
        ended: list[BatchRow[K]] = []
        for row, ranking in zip(rows, rankings, strict=True):
            assert row.beams is not None
            origins = row.beams.take(
                [list(zip(one.tokens, one.logprobs, strict=True)) for one in ranking]
            )
            if row.beams.done:
                self._free_texts += row.beam_texts[1:]
                ended.append(row)
                continue
            self._beamed.append(row)
            length = max(length, row.beams.length)
            for text, origin in zip(row.beam_texts, origins, strict=True):
                if text != row.beam_texts[origin]:
                    sources.append(row.beam_texts[origin])
                    targets.append(text)
        if sources:
            self._decoder.caches.copy_text(sources, targets, length)
        if ended:
            self._judge(ended)

    def _judge(self, rows: Sequence[BatchRow[K]]) -> None:
        """One pass over a text that is known: how likely it is, and what it attends to."""
        feeds: list[Feed] = []
        texts: list[list[int]] = []
        for row in rows:
            if row.taken is not None:
                (initial, row.sot), text = row.initials[row.taken], list(row.taken.tokens)
            else:
                assert row.beams is not None
                initial, text = row.beams.initial, row.beams.best()
            texts.append(text)
            row.end = len(initial) + len(text)
            feeds.append(
                Feed(
                    text=row.slot,
                    window=row.slot,
                    tokens=[*initial, *text],
                    start=0,
                    first=len(initial) - 1,
                    opening=bool(text) and not row.job.prefix,
                    sot=row.sot,
                    expected=[*text, self._eot],
                )
            )
        answers: list[Choices] = []
        for part in _parts([len(feed.tokens) for feed in feeds]):
            answers += self._count(self._decoder.prefill(feeds[part]))
        for row, text, choices in zip(rows, texts, answers, strict=True):
            if row.taken is None:
                row.no_speech_prob = choices.no_speech_prob or 0.0
                if not row.conclude_beams(text, choices.logprobs):
                    self._new.append(row)
                    continue
            self._done.append(row)

    # The end

    def _align(self) -> list[tuple[K, Outcome]]:
        rows, self._done = self._done, []
        spoken = [row for row in rows if row.taken is not None and row.taken.tokens]
        spans = [
            Span(
                text=row.slot,
                window=row.slot,
                first=row.sot,
                end=row.end,
                frames=row.frames,
                positions=row.positions,
                tail=row.tail,
            )
            for row in spoken
        ]
        skip = len(self._tokenizer.sot_sequence)
        times: list[RowTimes] = []
        if spans:
            times = align_rows(self._decoder.caches, spans, skip=skip, meanwhile=self._encode_on)
        found = {row.slot: one for row, one in zip(spoken, times, strict=True)}
        self._free += [row.slot for row in rows]
        return [(row.key, _outcome(row, found.get(row.slot))) for row in rows]

    # Inside

    def _count(self, answers: list[Choices]) -> list[Choices]:
        self.passes += 1
        self.rows_run += len(answers)
        return answers

    def _learn_languages(self, rows: Sequence[BatchRow[K]]) -> None:
        doubted = [row for row in rows if doubts_language(row.job, self.model)]
        if doubted:
            logits = self._decoder.language_logits(
                [(row.slot, row.slot) for row in doubted], self._tokenizer.sot
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

    def _seed(self, row: BatchRow[K]) -> int:
        """Of sampling: another at every place, and the same whatever is decoded beside it."""
        return self.config.seed + row.current.length


def _parts(lengths: Sequence[int]) -> list[slice]:
    """Which rows of ``lengths`` tokens are run together."""
    parts: list[slice] = []
    begin, width = 0, 0
    for row, length in enumerate(lengths):
        width = max(width, length)
        if row > begin and width * (row + 1 - begin) > _PREFILL_TOKENS:
            parts.append(slice(begin, row))
            begin, width = row, length
    if begin < len(lengths):
        parts.append(slice(begin, len(lengths)))
    return parts


def _outcome(row: BatchRow[K], times: RowTimes | None) -> Outcome:
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
