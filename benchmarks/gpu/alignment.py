"""Word alignment's two kernels, Triton on a GPU beside numba on one core of the CPU: equal results, and times.

    python benchmarks/gpu/alignment.py

Dynamic time warping of 64 texts of 60 tokens over 1,500 frames, and the median filter of the attention that comes
before it (6 heads). ``equal`` says whether every start of a word is in the same frame, and every median the same
number. ``device_ms`` is on the device, ``copied_ms`` with the copy there and back.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rig import milliseconds, parser, report
from whisper_stream.model.cpu.alignment import dtw, median_of_seven
from whisper_stream.model.gpu.triton_dtw import row_starts
from whisper_stream.model.gpu.triton_median import median_rows

TEXTS, TOKENS, FRAMES, HEADS = 64, 60, 1500, 6


def cpu_ms(work: Callable[[], object], rounds: int = 7) -> float:
    work()  # compiles
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def starts_of(cost: np.ndarray) -> np.ndarray:
    """The frame at which the path enters each row, by numba."""
    rows, columns = dtw(cost)
    return columns[np.concatenate(([True], np.diff(rows) > 0))]


def warping() -> dict[str, object]:
    costs = np.random.default_rng(0).normal(size=(TEXTS, TOKENS, FRAMES)).astype(np.float32)
    there = torch.from_numpy(costs).cuda()
    expected = np.stack([starts_of(cost) for cost in costs])
    return {
        "what": "dtw",
        "equal": bool((row_starts(there).cpu().numpy() == expected).all()),
        "device_ms": round(milliseconds(row_starts, there), 3),
        "copied_ms": round(
            milliseconds(lambda: row_starts(torch.from_numpy(costs).cuda()).cpu()), 2
        ),
        "numba_ms": round(cpu_ms(lambda: [starts_of(cost) for cost in costs]), 2),
    }


def median() -> dict[str, object]:
    rows = np.random.default_rng(1).normal(size=(TEXTS * TOKENS * HEADS, FRAMES))
    scores = rows.astype(np.float32)
    there = torch.from_numpy(scores).cuda()
    expected = median_of_seven(scores)
    return {
        "what": "median",
        "equal": bool((median_rows(there, 7).cpu().numpy() == expected).all()),
        "device_ms": round(milliseconds(lambda: median_rows(there, 7)), 3),
        "copied_ms": round(
            milliseconds(lambda: median_rows(torch.from_numpy(scores).cuda(), 7).cpu()), 2
        ),
        "numba_ms": round(cpu_ms(lambda: median_of_seven(scores)), 2),
    }


def main() -> int:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [warping(), median()]
    for row in rows:
        print(row, flush=True)
    figures: dict[str, object] = {"benchmark": "gpu_alignment", "rows": rows}
    report(figures)
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
