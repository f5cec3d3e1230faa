"""Is a batch on the GPU the same as one job after the other, graphs the same as the plain loop, and CUDA as the CPU?

    python benchmarks/gpu/equality.py --models tiny.en base

Windows of the recordings in tests/data, growing as a stream's do, with drafts, prompts, prefixes, languages
given and detected, and endpoints, all in one batch. Prints a line a comparison and, last, one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rig import milliseconds, parser, report
from whisper_stream.model.align import median_filter, token_times
from whisper_stream.model.gpu.kernels import PlainKernels
from whisper_stream.model.gpu.triton_dtw import row_starts
from whisper_stream.model.gpu.triton_median import median_rows
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.streamer.engine.backend import BackendConfig
from whisper_stream.streamer.engine.cpu_backend import CpuBackend
from whisper_stream.streamer.engine.gpu_backend import GpuBackend
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

DATA = Path(__file__).parents[2] / "tests" / "data"
CONFIG = BackendConfig()
RATE = 16_000


def clips(english: bool) -> list[tuple[str, np.ndarray]]:
    found = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    return [
        (clip["language"], load_audio(DATA / clip["file"]))
        for clip in found
        if clip.get("kind") == "speech" and (not english or clip["language"] == "en")
    ]


def make_jobs(reference: CpuBackend) -> list[DecodeJob]:
    """Jobs as a stream would ask for them; drafts are what ``reference`` heard before."""
    jobs: list[DecodeJob] = []
    multilingual = reference.model.is_multilingual
    for language, audio in clips(english=not multilingual):
        draft: tuple[int, ...] = ()
        for seconds in np.arange(1.5, len(audio) / RATE, 1.3):
            job = DecodeJob(
                audio=audio[: round(seconds * RATE)],
                language=None if multilingual and len(jobs) % 5 == 4 else language,
                prompt=draft[:6] if len(jobs) % 3 == 2 else (),
                prefix=draft[:3] if len(jobs) % 4 == 3 else (),
                draft=draft[3:] if len(jobs) % 4 == 3 else draft,
                task="translate" if multilingual and len(jobs) % 11 == 10 else "transcribe",
            )
            jobs.append(job)
            heard = reference.decode([replace(job, prefix=(), draft=(), prompt=())])[0].tokens
            draft = heard if job.task == "transcribe" else draft
        jobs.append(DecodeJob(audio=audio[: 30 * RATE], language=language, endpoint=True))
    jobs.append(DecodeJob(audio=np.zeros(3 * RATE, np.float32), language="en", endpoint=True))
    return jobs


def compare(name: str, a: Sequence[DecodeResult], b: Sequence[DecodeResult]) -> dict[str, object]:
    pairs = list(zip(a, b, strict=True))
    same = [x.tokens == y.tokens and x.language == y.language for x, y in pairs]
    apart = [
        max(abs(v.start - w.start), abs(v.end - w.end))
        for (x, y), equal in zip(pairs, same, strict=True)
        if equal
        for v, w in zip(x.words, y.words, strict=True)
    ]
    row: dict[str, object] = {
        "compared": name,
        "jobs": len(pairs),
        "same_text": sum(same),
        "words": len(apart),
        "within_20_ms": sum(one < 0.0201 for one in apart),
        "most_apart": round(max(apart, default=0.0), 3),
        "logprob_apart": round(max(abs(x.avg_logprob - y.avg_logprob) for x, y in pairs), 5),
        "no_speech_apart": round(
            max(abs(x.no_speech_prob - y.no_speech_prob) for x, y in pairs), 5
        ),
    }
    print(row, flush=True)
    return row


def kernels() -> list[dict[str, object]]:
    """DTW and median filter: Triton against the CPU's (numba, numpy), equal and how long."""
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for batch, tokens, frames in ((1, 40, 500), (32, 40, 500), (64, 60, 1500)):
        cost = torch.randn(batch, tokens, frames)
        cuda = cost.cuda()
        starts = row_starts(cuda).cpu()
        began = time.perf_counter()
        expected = [np.rint(token_times(one) / 0.02).astype(int).tolist() for one in cost]
        host = time.perf_counter() - began
        weights = torch.randn(batch * 6 * tokens, frames)
        began = time.perf_counter()
        filtered = median_filter(weights, 7)
        host_median = time.perf_counter() - began
        on_device = weights.cuda()
        rows.append(
            {
                "batch": batch,
                "tokens": tokens,
                "frames": frames,
                "dtw_equal": starts.tolist() == expected,
                "dtw_ms": round(milliseconds(row_starts, cuda), 3),
                "dtw_cpu_ms": round(host * 1e3, 2),
                "median_equal": bool(torch.equal(median_rows(on_device, 7).cpu(), filtered)),
                "median_ms": round(milliseconds(median_rows, on_device, 7), 3),
                "median_cpu_ms": round(host_median * 1e3, 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    args = parser(__doc__).parse_args()
    rows: list[dict[str, object]] = []
    for name in args.models:
        cpu = CpuBackend(load_model(name, device="cpu", compute_type="float32"), CONFIG)
        jobs = make_jobs(cpu)
        expected = cpu.decode(jobs)
        for dtype in ("float32", "float16", "bfloat16"):
            model = load_model(name, device="cuda", compute_type=dtype)
            room: dict[str, Any] = {"slots": 64, "searches": 64, "whole_at_once": 64}
            batch = GpuBackend(model, CONFIG, **room)
            together = batch.decode(jobs)
            alone = [batch.decode([job])[0] for job in jobs]
            plain_loop = GpuBackend(model, CONFIG, graphs=False, **room)
            no_triton = GpuBackend(model, CONFIG, graphs=False, kernels=PlainKernels(), **room)
            title = f"{name} {dtype}"
            rows.append(compare(f"{title}: CUDA batch, CPU float32", together, expected))
            rows.append(compare(f"{title}: batch, one by one", together, alone))
            rows.append(compare(f"{title}: graphs, plain loop", together, plain_loop.decode(jobs)))
            rows.append(compare(f"{title}: Triton, PyTorch", together, no_triton.decode(jobs)))
            one = CpuBackend(model, CONFIG)
            rows.append(
                compare(f"{title}: batch, one job after the other", together, one.decode(jobs))
            )
            del model, batch, plain_loop, no_triton, one
            torch.cuda.empty_cache()
    return report({"benchmark": "gpu_equality", "rows": rows, "kernels": kernels()})


if __name__ == "__main__":
    sys.exit(main())
