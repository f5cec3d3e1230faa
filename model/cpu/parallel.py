"""Kernels on several cores: parts of one product, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["in_parts", "small_operations"]

_MOST_THREADS = 8
_local = threading.local()


@contextmanager
def small_operations() -> Iterator[None]:
    """While in it, this thread's PyTorch operations use one core: sharing ten microseconds of work costs more.

    ``in_parts`` shares as before.
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


def in_parts(work: Callable[[int, int], None], size: int, *, align: int) -> None:
    """Calls ``work(begin, end)`` for parts of 0..``size``, as many as PyTorch may use threads here.

    ``work`` must release the GIL. What a helper has not begun by the time this thread is done with its
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
