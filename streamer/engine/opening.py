"""``open_engine``: loads a model, warms it up, and starts its engine."""

from __future__ import annotations

import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..jobs import DecodeJob
from .engine import Engine

if TYPE_CHECKING:
    from ...model.whisper.network import Whisper

__all__ = ["open_engine"]

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005  # that a thread runs before others may
_MOST_WORKERS = 4  # backends of one model on CPU


def open_engine(
    model: str,
    *,
    device: str | None = None,
    compute_type: str = "auto",
    threads: int | None = None,
    number: int = 0,
    count: int = 1,
) -> Engine:
    """Load ``model``, warm it up, and start its engine.

    Args:
        model: a name or path.
        device: None takes a GPU if there is one.
        threads: processor threads; None takes the share of this process.
        number: of this process among ``count`` that have an engine each. They share the processors, and the
            GPUs: unless one is named, each process takes the next in turn.

    Raises:
        ModelError: it cannot be loaded; see ``load_model``.
    """
    from ...model.cpu.runtime import (
        disable_mkl_buffers,
        limit_onednn_cache,
        use_one_malloc_arena,
        use_passive_omp_wait,
    )
    from ...model.weights.locate import locate

    locate(model)  # a mistyped name is refused before the slow imports
    use_passive_omp_wait()
    limit_onednn_cache()
    disable_mkl_buffers()
    use_one_malloc_arena()

    import torch

    from ...model.weights.loading import load_model

    if threads is None and count > 1:
        threads = max(1, torch.get_num_threads() // count)
    if threads is not None:
        torch.set_num_threads(threads)
    sharing = count
    if device in (None, "cuda") and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        device = f"cuda:{number % gpus}"
        sharing = -(-count // gpus)
    whisper = load_model(model, device=device, compute_type=compute_type)
    return _on_gpu(whisper, sharing) if whisper.device.type == "cuda" else _on_cpu(whisper)


def _on_cpu(whisper: Whisper) -> Engine:
    """Return an engine with a backend for each core: they get more done than one on all cores."""
    import numpy as np
    import torch

    from ...model.cpu.runtime import trim_malloc
    from ...model.cpu.warmup import COMPILING, warm_up
    from .cpu_backend import CoreShare, CpuBackend

    cores = torch.get_num_threads()
    share = CoreShare(cores)
    # kernels are loaded beside the encoder's first run
    with ThreadPoolExecutor(1) as beside:
        warming = beside.submit(warm_up, whisper, lambda: _log.info(COMPILING))
        first = CpuBackend(whisper, cores=share)
        warming.result()
    others = [
        CpuBackend(whisper, encoder=first.encoder, cores=share)
        for _ in range(min(cores, _MOST_WORKERS) - 1)
    ]
    # the first decode compiles and allocates: no user should wait for that
    noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
    first.decode([DecodeJob(audio=noise, language="en")])
    trim_malloc()
    return Engine(
        [first, *others],
        first.tokenizer,
        model_name=whisper.name,
        languages=first.tokenizer.all_language_codes if whisper.is_multilingual else (),
        on_rest=trim_malloc,
        clock=time.perf_counter,
    )


def _on_gpu(whisper: Whisper, sharing: int) -> Engine:
    """Return an engine with one backend, in which the jobs of all streams are rows.

    Args:
        sharing: engines on the same GPU.
    """
    import torch

    from .gpu_backend import GpuBackend, fitting_slots

    torch.cuda.set_device(
        whisper.device
    )  # of this thread: the statistics of the GPU's use are asked for here
    free, _ = torch.cuda.mem_get_info(whisper.device)
    backend = GpuBackend(whisper, slots=fitting_slots(whisper, free // sharing))
    backend.warm_up()
    # the engine's thread waits for the GPU often, and should not wait for other threads after that
    sys.setswitchinterval(_SWITCH_SECONDS)
    return Engine(
        [backend],
        backend.tokenizer,
        model_name=whisper.name,
        languages=backend.tokenizer.all_language_codes if whisper.is_multilingual else (),
        clock=time.perf_counter,
        # streams go on in the process that is started next, if there is a journal
        on_fatal=lambda: os._exit(os.EX_SOFTWARE),
    )
