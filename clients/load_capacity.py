"""The search for the largest number of streams that a server carries. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

__all__ = ["find_capacity"]


async def find_capacity(carries: Callable[[int], Awaitable[bool]], *, first: int, most: int) -> int:
    """The largest number of streams from 1 to ``most`` that ``carries`` is true of; 0: of none.

    Doubles from ``first`` until it is too much, then halves what lies between. ``carries`` is asked
    once of each number, and taken to be false of all above one it is false of.
    """
    carried, tried = 0, min(first, most)
    while await carries(tried):
        carried = tried
        if carried == most:
            return most
        tried = min(2 * tried, most)
    refused = tried
    while refused - carried > 1:
        middle = (carried + refused) // 2
        if await carries(middle):
            carried = middle
        else:
            refused = middle
    return carried
