"""Results of ``bench`` and ``load`` written by hand."""

from __future__ import annotations

from typing import Any

from whisper_stream.clients.tools.bench_metrics import CommittedWord, Erasure
from whisper_stream.clients.tools.bench_run import BenchResult
from whisper_stream.clients.tools.clips import Clip
from whisper_stream.clients.tools.load_plan import StreamPlan
from whisper_stream.clients.tools.load_run import LoadRun
from whisper_stream.clients.tools.load_worker import StreamOutcome
from whisper_stream.clients.tools.scoring import ErrorCount


def bench_result(**changes: Any) -> BenchResult:
    given: dict[str, Any] = {
        "file": "a.wav",
        "language": "en",
        "by_character": False,
        "audio_seconds": 10.0,
        "text": "a b c",
        "text_offline": "a b",
        "errors": ErrorCount(1, 2),
        "errors_offline": ErrorCount(0, 2),
        "words": tuple(
            CommittedWord(text=f" {name}", shown=at + 0.5, committed=at + 1.0)
            for at, name in enumerate("abc")
        ),
        "ends": (0.0, 0.5, None),
        "erasure": Erasure(4, 1),
        "erasure_exact": Erasure(4, 2),
        "retracted": 0,
        "flush_seconds": 0.3,
        "cpu_seconds": 2.0,
        "updates": 5,
        "decoder_steps": 30,
    }
    return BenchResult(**{**given, **changes})


def clip(path: str, language: str | None = "en", *references: str, seconds: float = 2.0) -> Clip:
    return Clip(path=path, language=language, references=references, seconds=seconds)


def load_run() -> LoadRun:
    plans = (
        StreamPlan(stream=0, delay=0.0, clips=(clip("x/a.wav", "en", "ask not what"),)),
        StreamPlan(stream=1, delay=0.1, clips=(clip("b.wav", "en", "ask"),)),
        StreamPlan(stream=2, delay=0.2, clips=(clip("c.wav", "en", "so it is"),)),
    )
    outcomes = (
        StreamOutcome(
            stream=0, audio_seconds=6.0, delays=[1.0, 2.0, 3.0], text=" Ask nut what", lag_max=0.5
        ),
        StreamOutcome(stream=1, refused="too_many_streams"),
        StreamOutcome(stream=2, audio_seconds=2.0, delays=[0.0, 4.0], text=" so", late_max=0.25),
    )
    return LoadRun(
        plans=plans,
        outcomes=outcomes,
        cpu_seconds=2.0,
        memory_growth=3 * 2**20,
        gpu_utilization=0.25,
        gpu_memory=2**31,
        player_cpu_seconds=0.5,
    )
