"""How many live streams one GPU carries: the engine with simulated streams at the pace of speech.

    python benchmarks/gpu/streams.py --models large-v3-turbo --streams 300 400 500

Every stream asks for an update a second, with windows, prompts, prefixes, drafts and text of real streams:
those that ``--trace`` wrote, of base on any recordings. Weights are random at the sizes of the
models, so what they say is replaced by the trace's tokens, once the work is done: encoder, passes, steps
and word times are all computed. Turnaround is from asking for an update until its words are there.

    python benchmarks/gpu/streams.py --trace traces.json --audio talk.flac [--model base]

Prints a line for every number of streams, and, last, one JSON object.
"""

from __future__ import annotations

import gc
import heapq
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rig import parser, random_model, report
from scripted import ScriptedBackend
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.streamer.audio.vad import make_detector
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.engine.backend import BackendConfig
from whisper_stream.streamer.engine.cpu_backend import CpuBackend
from whisper_stream.streamer.engine.engine import Engine
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession

DATA = Path(__file__).parents[2] / "tests" / "data"
RATE = 16_000
CADENCE = 1.0  # seconds


# Traces


def write_traces(target: Path, name: str, files: Sequence[Path]) -> None:
    """Runs real streams with a real model and writes down what they asked for and were told."""
    backend = CpuBackend(load_model(name), BackendConfig(endpoint_beams=1))
    audio = np.concatenate([load_audio(path) for path in files])
    session = StreamSession(
        StreamConfig(language="en", update_interval=CADENCE),
        make_detector("webrtc"),
        backend.tokenizer,
    )
    rows: list[dict[str, object]] = []
    for at in range(0, len(audio), RATE // 10):
        piece = audio[at : at + RATE // 10]
        session.feed(piece)
        heard = at + len(piece)
        while (job := session.next_job(heard / RATE)) is not None:
            result = backend.decode_one(job)
            session.finish_job(result, heard / RATE)
            rows.append(
                {
                    "at": round(heard / RATE, 2),
                    "samples": len(job.audio),
                    "prompt": list(job.prompt),
                    "prefix": list(job.prefix),
                    "draft": list(job.draft),
                    "endpoint": job.endpoint,
                    "text": list(result.tokens),
                    "steps": result.steps,
                }
            )
    target.write_text(json.dumps({"model": name, "updates": rows}))
    long = [row["samples"] / RATE for row in rows]  # type: ignore[operator]
    print(
        f"{len(rows)} updates in {len(audio) / RATE:.0f} s; windows {np.mean(long):.1f} s on average, at most "
        f"{max(long):.1f}; {np.mean([row['steps'] for row in rows]):.1f} passes"  # type: ignore[misc]
    )


# Streams


class Load:
    """``streams`` live streams, each a second apart from itself and at a random place in the trace."""

    def __init__(
        self, engine: Engine, updates: Sequence[tuple[DecodeJob, float]], streams: int
    ) -> None:
        self._engine = engine
        self._updates = updates
        chance = random.Random(0)
        self._next = [
            (chance.random() * CADENCE, stream, chance.randrange(len(updates)))
            for stream in range(streams)
        ]
        self._next.sort()
        self._lock = threading.Lock()
        self.turnarounds: list[float] = []
        self.late = 0  # updates that were due while the one before was still out
        self.failed = 0

    def run(self, seconds: float, warm: float) -> None:
        """Counts what is asked for after ``warm`` seconds."""
        busy: set[int] = set()
        heap = self._next
        heapq.heapify(heap)
        began = time.perf_counter()
        while True:
            due, stream, place = heapq.heappop(heap)
            wait = began + due - time.perf_counter()
            if due > seconds:
                return
            if wait > 0:
                time.sleep(wait)
            if self.failed:
                raise RuntimeError("a job failed: the log says where")
            counted = due > warm
            with self._lock:
                out = stream in busy
                busy.add(stream)
            if out:
                self.late += counted
                heapq.heappush(heap, (due + 0.1, stream, place))
                continue
            job, pause = self._updates[place]
            asked = began + due  # what waits here waits too

            def done(
                future: Future[DecodeResult],
                stream: int = stream,
                asked: float = asked,
                counted: bool = counted,
            ) -> None:
                took = time.perf_counter() - asked
                with self._lock:
                    busy.discard(stream)
                    if future.cancelled() or future.exception() is not None:
                        self.failed += 1
                    elif counted:
                        self.turnarounds.append(took)

            self._engine.submit(job).add_done_callback(done)
            heapq.heappush(heap, (due + pause, stream, (place + 1) % len(self._updates)))


def load_updates(path: Path) -> tuple[list[tuple[DecodeJob, float]], dict[int, list[int]]]:
    """The jobs of the trace, each with the seconds until the next one; and their text."""
    trace = json.loads(path.read_text())
    noise = np.random.default_rng(0).normal(0, 0.05, 30 * RATE).astype(np.float32)
    updates, scripts = [], {}
    for row, after in zip(trace["updates"], [*trace["updates"][1:], None], strict=True):
        job = DecodeJob(
            audio=noise[: row["samples"]],
            prompt=tuple(row["prompt"]),
            prefix=tuple(row["prefix"]),
            draft=tuple(row["draft"]),
            language="en",
            endpoint=row["endpoint"],
        )
        updates.append((job, max(0.05, after["at"] - row["at"]) if after else CADENCE))
        scripts[id(job.audio)] = row["text"]
    return updates, scripts


def measure(args: Any) -> int:
    sys.setswitchinterval(0.0005)  # as the daemon does
    torch.set_num_threads(1)
    updates, scripts = load_updates(args.traces)
    rows: list[dict[str, object]] = []
    for name in args.models:
        model = random_model(name, dtype=getattr(torch, args.dtype))
        config = BackendConfig(endpoint_beams=args.beams, endpoint_context=args.endpoint_context)
        before = torch.cuda.memory_allocated()
        backend = ScriptedBackend(
            model,
            config,
            slots=args.slots,
            whole_at_once=args.whole_at_once,
            script=lambda job: scripts.get(id(job.audio)),
        )
        began = time.perf_counter()
        backend.warm_up()
        warmed = time.perf_counter() - began
        engine = Engine([backend], backend.tokenizer, model_name=name, clock=time.perf_counter)
        for streams in args.streams:
            torch.cuda.reset_peak_memory_stats()
            gc.collect()
            passes, ran = backend.batch.passes, backend.batch.rows_run
            cpu = time.process_time()
            start = engine.statistics()
            clock = time.perf_counter()
            load = Load(engine, updates, streams)
            load.run(args.seconds, args.seconds / 4)
            spent = time.perf_counter() - clock
            end = engine.statistics()
            times = sorted(load.turnarounds)
            row: dict[str, object] = {
                "model": name,
                "streams": streams,
                "beams": args.beams,
                "endpoint_context": args.endpoint_context,
                "updates_per_s": round((end.done - start.done) / spent, 1),
                "turnaround_p50": round(times[len(times) // 2], 3),
                "turnaround_p95": round(times[int(len(times) * 0.95)], 3),
                "turnaround_p99": round(times[int(len(times) * 0.99)], 3),
                "late": load.late,
                "failed": load.failed,
                "engine_busy": round((end.busy_seconds - start.busy_seconds) / spent, 3),
                "rows_per_pass": round(
                    (backend.batch.rows_run - ran) / max(1, backend.batch.passes - passes), 1
                ),
                "host_cpu": round((time.process_time() - cpu) / spent, 2),
                "gpu_mib": round(torch.cuda.max_memory_allocated() / 2**20),
                "slots_mib": round((torch.cuda.memory_allocated() - before) / 2**20),
                "host_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "warm_up_s": round(warmed, 1),
            }
            rows.append(row)
            print(row, flush=True)
            while engine.statistics().queued + engine.statistics().running:
                time.sleep(0.05)
        engine.close()
        del engine, backend, model
        gc.collect()
        torch.cuda.empty_cache()
    return report({"benchmark": "gpu_streams", "cadence_seconds": CADENCE, "rows": rows})


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--streams", type=int, nargs="+", default=[100, 200, 400])
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--slots", type=int, default=128)
    options.add_argument("--dtype", default="float16", choices=["float32", "float16", "bfloat16"])
    options.add_argument("--endpoint-context", default="full", choices=["full", "trimmed"])
    options.add_argument("--beams", type=int, default=5, help="of endpoints")
    options.add_argument(
        "--whole-at-once", type=int, default=2, help="endpoints of a wave in full context"
    )
    options.add_argument("--traces", type=Path, default=Path("traces.json"))
    options.add_argument("--trace", type=Path, help="write traces, and do nothing else")
    options.add_argument("--model", default="base", help="of the traces")
    options.add_argument("--audio", type=Path, nargs="+", default=[DATA / "en-speech-jfk.wav"])
    args = options.parse_args()
    if args.trace is not None:
        write_traces(args.trace, args.model, args.audio)
        return 0
    return measure(args)


if __name__ == "__main__":
    sys.exit(main())
