"""Kernels on several cores: parts of one product, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["parallel_for", "single_threaded_torch"]

_MOST_THREADS = 8
_local = threading.local()


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Within it, run this thread's PyTorch operations on one core: sharing ten microseconds of work costs more.

    ``parallel_for`` shares as before. Several engine threads may be inside at once: OpenMP keeps the number
    of threads per calling thread (its ``nthreads-var`` is thread-local), so ``torch.set_num_threads`` here
    changes only what the caller's own operations use, and what is put back at the end is the caller's own.
    """
    threads = torch.get_num_threads()
    _local.threads = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del _local.threads


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS - 1, thread_name_prefix="kernel")


def parallel_for(work: Callable[[int, int], None], size: int, *, align: int) -> None:
    """Call ``work(begin, end)`` for parts of 0..``size``, one for each thread that PyTorch may use here.

    Args:
        work: releases the GIL; an error in any part is raised here.
        size: end of the last part.
        align: every part but the last begins and ends at a multiple of it.

    What a helper has not begun by the time this thread is done with its
    own part, this thread does too: on a busy machine nobody waits for a thread that gets no core.
    """
    parts = min(getattr(_local, "threads", torch.get_num_threads()), _MOST_THREADS)
    step = -(-size // parts // align) * align
    bounds = [(begin, min(begin + step, size)) for begin in range(0, size, step)]
    others = [(_helpers().submit(work, *bound), bound) for bound in bounds[1:]]
    work(*bounds[0])
    for future, bound in others:
        if future.cancel():
            work(*bound)
        else:
            future.result()
