"""The decoder passes of a batch: rows are opened, go on step by step, and end. See ``batch_backend``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from ..model.slot_decoder import Choices, Feed, SlotDecoder
from ..model.tokenizer import Tokenizer
from ..model.whisper import Whisper
from .attempts import Ladder, in_language
from .backend_config import BackendConfig
from .batch_row import BatchRow
from .rules import doubts_language, pick_language, tokenizer_for

__all__ = ["BatchPasses"]

K = TypeVar("K")

_PREFILL_TOKENS = 16_384  # run at once, padding included


class BatchPasses(Generic[K]):
    """Rows come in by ``new`` and go out by ``done``. ``texts``: slots for the beams of searches."""

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig,
        tokenizer: Tokenizer,
        decoder: SlotDecoder,
        texts: Sequence[int],
    ) -> None:
        self.model = model
        self.config = config
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._texts = tuple(texts)
        self._eot = tokenizer.eot
        self.passes = 0  # of the decoder
        self.rows_run = 0  # rows of all passes
        self.reset()

    def reset(self) -> None:
        """Forgets all rows."""
        self.new: list[BatchRow[K]] = []  # their audio is encoded
        self.done: list[BatchRow[K]] = []  # their text is known
        self.running = 0  # rows of the last step
        self._free_texts = list(self._texts)
        self._active: list[BatchRow[K]] = []
        self._beamed: list[BatchRow[K]] = []
        self._closing: list[BatchRow[K]] = []

    @property
    def going(self) -> bool:
        """Whether there are rows to go on with."""
        return bool(self.new or self._active or self._beamed or self._closing)

    def advance(self) -> None:
        """One pass over the rows that wait for one."""
        if self.new:
            self._open()
        elif self.going:
            self._step()

    def _open(self) -> None:
        """Languages, then the first pass of new tries."""
        rows, self.new = self.new, []
        self._learn_languages([row for row in rows if row.tokenizer is None])
        able = len(self._free_texts) // max(1, self.config.final_beams - 1)
        beamed = [row for row in rows if row.wants_beams][:able]
        greedy = [row for row in rows if row not in beamed]
        for row in rows:
            row.begin(self._eot, self.model.dims.n_text_ctx, beams=row in beamed)
        fed = [(row, row.current.feed()) for row in greedy]
        fed.sort(key=lambda pair: len(pair[1]))  # rows of like length are padded least
        for part in _parts([len(tokens) for _, tokens in fed]):
            self._prefill(fed[part])
        if beamed:
            self._open_beams(beamed)

    def _prefill(self, fed: Sequence[tuple[BatchRow[K], list[int]]]) -> None:
        feeds = [
            Feed(
                text=row.slot,
                window=row.slot,
                tokens=tokens,
                start=0,
                first=len(row.current.initial) - 1,
                opening=not row.job.prefix,
                temperature=row.temperature,
                seed=self._seed(row),
                sot=row.sot,
            )
            for row, tokens in fed
        ]
        answers = self._count(self._decoder.prefill(feeds))
        for (row, _), choices in zip(fed, answers, strict=True):
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
        self.running = len(feeds) + len(beams)
        chosen, ranked = self._decoder.step(feeds, beams)
        self._count([*chosen, *ranked])
        for row, choices in zip(rows, chosen, strict=False):
            self._take(row, choices)
        self.done += closing
        if beamed:
            rankings = iter(ranked)
            self._spread(beamed, [[next(rankings) for _ in row.beam_texts] for row in beamed])

    def _take(self, row: BatchRow[K], choices: Choices) -> None:
        greedy = row.current
        greedy.take(choices.tokens, choices.logprobs)
        if not greedy.done:
            self._active.append(row)
            return
        if not row.conclude():
            self.new.append(row)
            return
        assert row.taken is not None
        if row.initials[row.taken][0] is not greedy.initial:
            # an earlier one is taken: its attention was overwritten by later ones
            self._judge([row])
            return
        row.end = greedy.length
        (self._closing if greedy.tokens and not greedy.ended else self.done).append(row)

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
                    self.new.append(row)
                    continue
            self.done.append(row)

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
                row.job = in_language(row.job, row.language)
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
