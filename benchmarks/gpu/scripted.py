"""A GPU backend of random weights that says a given text: all work is done, and then its finds are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whisper_stream.model.gpu.decoder import Choices
from whisper_stream.streamer.engine.gpu_backend import GpuBackend
from whisper_stream.streamer.engine.running_batch import RunningBatch
from whisper_stream.streamer.jobs import DecodeJob

__all__ = ["Script", "ScriptedBackend"]

# The tokens after a job's prefix; None: whatever the model chose.
Script = Callable[[DecodeJob], Sequence[int] | None]


class _ScriptedBatch(RunningBatch):
    script: Script

    def _apply_choices(self, row: Any, choices: Any) -> None:
        text = self.script(row.job)
        if text is not None:
            known = len(row.current.tokens)
            whole = [*text, self._eot]
            said = [whole[min(known + i, len(text))] for i in range(len(choices.tokens))]
            choices = Choices(said, [-0.2] * len(said), 0.01)
        super()._apply_choices(row, choices)

    def _reorder_beams(self, rows: Any, rankings: Any) -> None:
        """Every beam is told the next token of the text first."""
        told = []
        for row, ranking in zip(rows, rankings, strict=True):
            text = [*(self.script(row.job) or ()), self._eot]
            begun = bool(row.beams.last)
            known = row.beams.length + 1 - len(row.beams.initial) if begun else 0
            said = text[min(known, len(text) - 1)]
            told.append(
                [
                    Choices(
                        [said, *one.tokens[1:]], [-0.2 - 0.1 * n for n in range(len(one.tokens))]
                    )
                    for one in ranking
                ]
            )
        super()._reorder_beams(rows, told)


class ScriptedBackend(GpuBackend):
    def __init__(self, *args: Any, script: Script, **options: Any) -> None:
        self._script = script
        super().__init__(*args, **options)

    def _make_batch(self, beam_slots: Sequence[int]) -> _ScriptedBatch:
        batch = _ScriptedBatch(
            self.model, self.config, self.busy_rule, self._tokenizer, self._decoder, beam_slots
        )
        batch.script = self._script
        return batch
