"""``open_engine``: from the name of a model to an engine that has decoded something."""

from __future__ import annotations

import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..jobs import DecodeJob
from .engine import EngineThread

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
) -> EngineThread:
    """Loads ``model`` (a name or path), warms it up, and starts its engine.

    ``number``: of this process among ``count`` with an engine each. They share the processors; and the GPUs:
    without one that is named, each takes the next in turn.

    Raises the errors of ``load_model``, each one clear sentence.
    """
    from ...model.cpu.runtime import (
        disable_mkl_buffers,
        limit_onednn_cache,
        use_one_malloc_arena,
        use_passive_omp_wait,
    )
    from ...model.weights.locate import locate

    locate(model)  # a mistyped name is told before the slow imports
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


def _on_cpu(whisper: Whisper) -> EngineThread:
    """Two streams on one core each get more done than one after the other on all cores."""
    import numpy as np
    import torch

    from ...model.cpu.runtime import trim_malloc
    from ...model.cpu.warmup import COMPILING, warm_up
    from .cpu_backend import WhisperBackend

    cores = torch.get_num_threads()
    # kernels are loaded beside the encoder's first run
    with ThreadPoolExecutor(1) as beside:
        warming = beside.submit(warm_up, whisper, lambda: _log.info(COMPILING))
        first = WhisperBackend(whisper)
        warming.result()
    others = [
        WhisperBackend(whisper, encoder=first.encoder) for _ in range(min(cores, _MOST_WORKERS) - 1)
    ]
    # the first decode compiles and allocates: no user should wait for that
    noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
    first.decode([DecodeJob(audio=noise, language="en")])
    trim_malloc()
    return EngineThread(
        [first, *others],
        first.tokenizer,
        model_name=whisper.name,
        languages=first.tokenizer.all_language_codes if whisper.is_multilingual else (),
        on_start=lambda busy: torch.set_num_threads(max(1, cores // busy)),
        on_rest=trim_malloc,
        clock=time.perf_counter,
    )


def _on_gpu(whisper: Whisper, sharing: int) -> EngineThread:
    """One backend, in which the jobs of all streams are rows. ``sharing``: engines on the same GPU."""
    import torch

    from .gpu_backend import BatchBackend, fitting_slots
    from .scheduler import QueuedJob

    torch.cuda.set_device(whisper.device)  # of this thread: what tells the GPU's use asks here
    free, _ = torch.cuda.mem_get_info(whisper.device)
    batch = BatchBackend[QueuedJob](whisper, slots=fitting_slots(whisper, free // sharing))
    batch.warm_up()
    # the engine's thread waits for the GPU often, and should not wait for other threads after that
    sys.setswitchinterval(_SWITCH_SECONDS)
    return EngineThread(
        [],
        batch.tokenizer,
        model_name=whisper.name,
        languages=batch.tokenizer.all_language_codes if whisper.is_multilingual else (),
        clock=time.perf_counter,
        rolling=[batch],
        # streams go on in the process that is started next, if there is a journal
        on_fatal=lambda: os._exit(os.EX_SOFTWARE),
    )
