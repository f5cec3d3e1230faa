"""Work in parts: all of it, once, however many threads there are and whoever comes first."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.cpu.parallel import parallel_for, single_threaded_torch


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def parts_of(size: int, align: int) -> list[tuple[int, int]]:
    done: list[tuple[int, int]] = []
    parallel_for(lambda begin, end: done.append((begin, end)), size, align=align)
    return sorted(done)


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 3000), threads=st.integers(1, 12), align=st.sampled_from([1, 4, 16, 64]))
def test_every_number_is_in_one_part(size: int, threads: int, align: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        parts = parts_of(size, align)
    finally:
        torch.set_num_threads(before)
    assert [number for part in parts for number in range(*part)] == list(range(size))
    assert len(parts) <= min(threads, 8)
    assert all(begin % align == 0 for begin, _ in parts)


def test_nobody_waits_for_a_helper_that_does_not_come() -> None:
    """All seven helpers are busy until this thread has done every part itself."""
    torch.set_num_threads(8)
    all_busy, free = threading.Barrier(9), threading.Event()

    def busy(begin: int, end: int) -> None:
        all_busy.wait(30)
        assert free.wait(30)

    other = threading.Thread(target=parallel_for, args=(busy, 8), kwargs={"align": 1})
    other.start()
    done_by: list[int] = []
    try:
        all_busy.wait(30)
        parallel_for(lambda begin, end: done_by.append(threading.get_ident()), 8, align=1)
    finally:
        free.set()
        other.join(30)
    assert done_by == [threading.get_ident()] * 8


@pytest.mark.parametrize("part", [0, 3])
def test_an_error_in_any_part_is_told(part: int) -> None:
    torch.set_num_threads(4)

    def work(begin: int, end: int) -> None:
        if begin == part:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel_for(work, 4, align=1)


def test_operations_are_small_inside_and_as_before_after() -> None:
    torch.set_num_threads(2)
    with single_threaded_torch():
        assert torch.get_num_threads() == 1
        assert len(parts_of(64, 16)) == 2  # kernels are shared all the same
    assert torch.get_num_threads() == 2
    assert len(parts_of(64, 16)) == 2


def test_threads_are_as_before_after_an_error() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError), single_threaded_torch():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    torch.set_num_threads(3)
    assert len(parts_of(300, 1)) == 3  # nothing is remembered from within
