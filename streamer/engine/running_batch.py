"""The rows of a batch that is decoded continuously: they join, go through decoder passes, and finish.

Every pass takes all rows that wait for one of its kind:

    prefill: language, prompt and draft of the rows that have joined, in one pass
    step: a few tokens of each row, as often as it takes; the beams of searches beside them
    score: a text that is known, for its probability and attention

The last token of a text is chosen but not fed: its row takes part in one step more, for its attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.gpu.decoder import Choices, Feed, SlotDecoder
from ...model.whisper.network import Whisper
from ...model.whisper.tokenizer import Tokenizer
from .backend import BackendConfig, BusyRule
from .fallback import SEED, FallbackState, in_language
from .gpu_row import GpuRow
from .token_rules import doubts_language, pick_language, tokenizer_for

__all__ = ["RunningBatch"]

_PREFILL_TOKENS = 16_384  # run at once, padding included


class RunningBatch:
    """Decodes rows whose audio is in its slot already.

    Args:
        busy_rule: says whether a hurried endpoint has a beam search.
        beam_slots: text slots for the beams of searches, but for the first one of each search.

    Attributes:
        passes: of the decoder so far.
        rows_run: rows of all passes so far.
        stepped: rows of the last step.
    """

    def __init__(
        self,
        model: Whisper,
        config: BackendConfig,
        busy_rule: BusyRule,
        tokenizer: Tokenizer,
        decoder: SlotDecoder,
        beam_slots: Sequence[int],
    ) -> None:
        self.passes = 0
        self.rows_run = 0
        self._model = model
        self._config = config
        self._busy_rule = busy_rule
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._beam_slots = tuple(beam_slots)
        self._eot = tokenizer.eot
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.stepped = 0
        self._free_beam_slots = list(self._beam_slots)
        self._joining: list[GpuRow] = []  # wait for their prefill
        self._greedy: list[GpuRow] = []
        self._searching: list[GpuRow] = []
        self._closing: list[GpuRow] = []  # wait for the attention of their last token
        self._finished: list[GpuRow] = []

    @property
    def idle(self) -> bool:
        """True if no row waits for a pass."""
        return not (self._joining or self._greedy or self._searching or self._closing)

    @property
    def finished(self) -> int:
        """Rows that ``take_finished`` will return."""
        return len(self._finished)

    def join(self, rows: Sequence[GpuRow]) -> None:
        """Add rows whose audio is encoded."""
        self._joining += rows

    def step(self) -> None:
        """Run one pass: the prefill of rows that have joined, or a step of all others."""
        if self._joining:
            self._prefill()
        elif not self.idle:
            self._step()

    def take_finished(self) -> list[GpuRow]:
        """Return the rows whose text is known since the last call; they have left the batch."""
        rows, self._finished = self._finished, []
        return rows

    def _prefill(self) -> None:
        rows, self._joining = self._joining, []
        self._learn_languages([row for row in rows if row.tokenizer is None])
        searches = len(self._free_beam_slots) // max(1, self._config.endpoint_beams - 1)
        searching = [row for row in rows if row.wants_beams(self._busy_rule)][:searches]
        greedy = [row for row in rows if row not in searching]
        for row in rows:
            row.begin(self._eot, self._model.dims.n_text_ctx, beams=row in searching)
        fed = [(row, row.current.feed()) for row in greedy]
        fed.sort(key=lambda pair: len(pair[1]))  # rows of like length are padded least
        for part in _parts([len(tokens) for _, tokens in fed]):
            self._prefill_greedy(fed[part])
        if searching:
            self._prefill_beams(searching)

    def _prefill_greedy(self, fed: Sequence[tuple[GpuRow, list[int]]]) -> None:
        feeds = [
            Feed(
                text_slot=row.slot,
                audio_slot=row.slot,
                tokens=tokens,
                start=0,
                first_choice=len(row.current.initial) - 1,
                begins_text=not row.job.prefix,
                temperature=row.temperature,
                seed=_seed(row),
                sot_index=row.sot_index,
            )
            for row, tokens in fed
        ]
        answers = self._count(self._decoder.prefill(feeds))
        for (row, _), choices in zip(fed, answers, strict=True):
            row.no_speech_prob = choices.no_speech_prob or 0.0
            self._apply_choices(row, choices)

    def _prefill_beams(self, rows: Sequence[GpuRow]) -> None:
        feeds = []
        for row in rows:
            assert row.beams is not None
            others = self._config.endpoint_beams - 1
            row.beam_slots = [row.slot, *self._free_beam_slots[:others]]
            del self._free_beam_slots[:others]
            feeds.append(
                Feed(
                    text_slot=row.slot,
                    audio_slot=row.slot,
                    tokens=row.beams.initial,
                    start=0,
                    begins_text=not row.job.prefix,
                )
            )
        rankings = self._count(self._decoder.prefill_beams(feeds))
        self._reorder_beams(rows, [[ranking] for ranking in rankings])

    def _step(self) -> None:
        rows, self._greedy = self._greedy, []
        closing, self._closing = self._closing, []
        searching, self._searching = self._searching, []
        feeds = [
            Feed(
                text_slot=row.slot,
                audio_slot=row.slot,
                tokens=row.current.feed(self._decoder.widest),
                start=row.current.start,
                temperature=row.temperature,
                seed=_seed(row),
            )
            for row in rows
        ]
        feeds += [
            Feed(
                text_slot=row.slot,
                audio_slot=row.slot,
                tokens=[row.current.tokens[-1]],
                start=row.current.length - 1,
            )
            for row in closing
        ]
        beams = [
            Feed(text_slot=slot, audio_slot=row.slot, tokens=[token], start=row.beams.length)
            for row in searching
            if row.beams is not None
            for slot, token in zip(row.beam_slots, row.beams.last, strict=True)
        ]
        self.stepped = len(feeds) + len(beams)
        chosen, ranked = self._decoder.step(feeds, beams)
        self._count([*chosen, *ranked])
        for row, choices in zip(rows, chosen, strict=False):
            self._apply_choices(row, choices)
        self._finished += closing
        if searching:
            rankings = iter(ranked)
            self._reorder_beams(
                searching, [[next(rankings) for _ in row.beam_slots] for row in searching]
            )

    def _apply_choices(self, row: GpuRow, choices: Choices) -> None:
        """Go on with a greedy try: another step, another try, or the end."""
        greedy = row.current
        greedy.take(choices.tokens, choices.logprobs)
        if not greedy.done:
            self._greedy.append(row)
            return
        if not row.conclude():
            self._joining.append(row)
            return
        assert row.taken is not None
        if row.initials[row.taken][0] is not greedy.initial:
            # an earlier try is taken: its attention was overwritten by later ones
            self._score_texts([row])
            return
        row.end = greedy.length
        (self._closing if greedy.tokens and not greedy.ended else self._finished).append(row)

    def _reorder_beams(self, rows: Sequence[GpuRow], rankings: Sequence[Sequence[Choices]]) -> None:
        """Make every beam go on from the one that its text extends; score the texts of searches that end.

        Args:
            rankings: the likeliest next tokens of each beam of each row.
        """
        sources: list[int] = []
        targets: list[int] = []
        length = 0
        ended: list[GpuRow] = []
        for row, ranking in zip(rows, rankings, strict=True):
            assert row.beams is not None
            origins = row.beams.take(
                [list(zip(one.tokens, one.logprobs, strict=True)) for one in ranking]
            )
            if row.beams.done:
                self._free_beam_slots += row.beam_slots[1:]
                ended.append(row)
                continue
            self._searching.append(row)
            length = max(length, row.beams.length)
            for slot, origin in zip(row.beam_slots, origins, strict=True):
                if slot != row.beam_slots[origin]:
                    sources.append(row.beam_slots[origin])
                    targets.append(slot)
        if sources:
            self._decoder.caches.copy_text(sources, targets, length)
        if ended:
            self._score_texts(ended)

    def _score_texts(self, rows: Sequence[GpuRow]) -> None:
        """Run the text of each row in one pass: how likely it is, and what it attends to."""
        feeds: list[Feed] = []
        texts: list[list[int]] = []
        for row in rows:
            if row.taken is not None:
                (initial, row.sot_index), text = row.initials[row.taken], list(row.taken.tokens)
            else:
                assert row.beams is not None
                initial, text = row.beams.initial, row.beams.best()
            texts.append(text)
            row.end = len(initial) + len(text)
            feeds.append(
                Feed(
                    text_slot=row.slot,
                    audio_slot=row.slot,
                    tokens=[*initial, *text],
                    start=0,
                    first_choice=len(initial) - 1,
                    begins_text=bool(text) and not row.job.prefix,
                    sot_index=row.sot_index,
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
                    self._joining.append(row)
                    continue
            self._finished.append(row)

    def _learn_languages(self, rows: Sequence[GpuRow]) -> None:
        doubted = [row for row in rows if doubts_language(row.job, self._model)]
        if doubted:
            logits = self._decoder.language_logits(
                [(row.slot, row.slot) for row in doubted], self._tokenizer.sot
            ).cpu()
            for row, one in zip(doubted, logits, strict=True):
                row.language, row.probability = pick_language(row.job, self._tokenizer, one)
                row.job = in_language(row.job, row.language)
                row.fallback = FallbackState(row.job, self._config)
        for row in rows:
            if row.probability is None:
                row.language = row.job.language or "en"
            row.tokenizer = tokenizer_for(self._model, row.language, row.job.task)

    def _count(self, answers: list[Choices]) -> list[Choices]:
        self.passes += 1
        self.rows_run += len(answers)
        return answers


def _seed(row: GpuRow) -> int:
    """Return the seed of sampling: another at every place, and the same whatever is decoded beside it."""
    return SEED + row.current.length


def _parts(lengths: Sequence[int]) -> list[slice]:
    """Divide rows of ``lengths`` tokens into those that are run together."""
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
