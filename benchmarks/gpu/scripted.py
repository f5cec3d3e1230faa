"""A batch backend of random weights that says a given text: all work is done, and then what it found is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whisper_stream.model.gpu.decoder import Choices
from whisper_stream.streamer.engine.gpu_backend import BatchBackend, BatchPasses
from whisper_stream.streamer.engine.scheduler import QueuedJob
from whisper_stream.streamer.jobs import DecodeJob

__all__ = ["Script", "ScriptedBackend"]

# The tokens after a job's prefix; None: whatever the model chose.
Script = Callable[[DecodeJob], Sequence[int] | None]


class _ScriptedPasses(BatchPasses[QueuedJob]):
    script: Script

    def _take(self, row: Any, choices: Any) -> None:
        text = self.script(row.job)
        if text is not None:
            known = len(row.current.tokens)
            whole = [*text, self._eot]
            said = [whole[min(known + i, len(text))] for i in range(len(choices.tokens))]
            choices = Choices(said, [-0.2] * len(said), 0.01)
        super()._take(row, choices)

    def _spread(self, rows: Any, rankings: Any) -> None:
        """Every beam is told the next token of the text first."""
        told = []
        for row, ranking in zip(rows, rankings, strict=True):
            text = [*(self.script(row.job) or ()), self._eot]
            known = row.beams.length + 1 - len(row.beams.initial)
            said = text[min(known, len(text) - 1)]
            told.append(
                [
                    Choices(
                        [said, *one.tokens[1:]], [-0.2 - 0.1 * n for n in range(len(one.tokens))]
                    )
                    for one in ranking
                ]
            )
        super()._spread(rows, told)


class ScriptedBackend(BatchBackend[QueuedJob]):
    def __init__(self, *args: Any, script: Script, **options: Any) -> None:
        self._script = script
        super().__init__(*args, **options)

    def _make_passes(self, texts: Sequence[int]) -> _ScriptedPasses:
        passes = _ScriptedPasses(self.model, self.config, self._tokenizer, self._decoder, texts)
        passes.script = self._script
        return passes
