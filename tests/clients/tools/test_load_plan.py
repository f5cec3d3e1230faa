"""Plans of a load, and the search for the largest one that a server carries."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.tools.load_plan import (
    find_capacity,
    join_references,
    make_plans,
    share_out,
)

from ...helpers.measured import clip

# The search


def search(capacity: int, first: int, most: int) -> tuple[int, list[int]]:
    asked: list[int] = []

    async def carries(streams: int) -> bool:
        asked.append(streams)
        return streams <= capacity

    return asyncio.run(find_capacity(carries, first=first, most=most)), asked


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_search_finds_the_largest_number_and_asks_once(
    capacity: int, first: int, most: int
) -> None:
    found, asked = search(capacity, first, most)
    assert found == min(capacity, most)
    assert len(asked) == len(set(asked)) and len(asked) <= 2 * most.bit_length() + 1
    assert max(asked) <= most


def test_the_search_doubles_then_halves() -> None:
    assert search(11, 2, 1024) == (11, [2, 4, 8, 16, 12, 10, 11])
    assert search(0, 4, 1024) == (0, [4, 2, 1])


# Plans


def test_streams_begin_with_different_recordings_at_different_times() -> None:
    clips = [clip("a"), clip("b"), clip("c", "de")]
    plans = make_plans(clips, 4, seconds=0.0, spread=2.0, seed=1)
    assert [[each.path for each in plan.clips] for plan in plans] == [["a"], ["b"], ["c"], ["a"]]
    assert [plan.language for plan in plans] == ["en", "en", "de", "en"]
    assert len({plan.delay for plan in plans}) == 4
    assert all(0 <= plan.delay <= 2 for plan in plans)
    assert plans == make_plans(clips, 4, seconds=0.0, spread=2.0, seed=1)
    assert plans != make_plans(clips, 4, seconds=0.0, spread=2.0, seed=2)


def test_recordings_follow_in_one_language_until_enough_is_spoken() -> None:
    clips = [clip("a"), clip("b"), clip("c", "de")]
    plans = make_plans(clips, 3, seconds=7.5, spread=0.0, seed=0)  # 2 s each, 1 s between
    paths = ["".join(each.path for each in plan.clips) for plan in plans]
    assert paths == ["aba", "bab", "ccc"]
    endless = make_plans([clip("a", seconds=0.0)], 1, seconds=9.0, spread=0.0, seed=0)
    assert len(endless[0].clips) == 1  # a file that does not say how long it is


def test_plans_are_dealt_to_processes() -> None:
    plans = make_plans([clip("a")], 5, seconds=0.0, spread=0.0, seed=0)
    assert [[plan.stream for plan in share] for share in share_out(plans, 2)] == [[0, 2, 4], [1, 3]]
    assert len(share_out(plans, 64)) == 5


def test_references_of_several_recordings_are_joined() -> None:
    joined = join_references(
        [clip("a", "en", "in 1990", "in nineteen ninety"), clip("b", "en", "so")]
    )
    assert joined == ("in 1990 so", "in nineteen ninety so")
    assert join_references([clip("a", "en", "yes"), clip("b")]) == ()
