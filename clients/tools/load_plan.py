"""Plans of a load, and the search for the largest one that a server carries. No I/O.

A plan says which recordings a stream plays and when it begins. It is the same for the same seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from .clips import Clip

__all__ = [
    "PAUSE_SECONDS",
    "StreamPlan",
    "find_capacity",
    "join_references",
    "make_plans",
    "share_out",
]


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


PAUSE_SECONDS = 1.0  # of silence between two recordings of one stream


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One connection: its recordings, all in one language, one after the other."""

    stream: int
    delay: float  # seconds after the start of the run
    clips: tuple[Clip, ...]

    @property
    def language(self) -> str | None:
        return self.clips[0].language


def make_plans(
    clips: Sequence[Clip], streams: int, *, seconds: float, spread: float, seed: int
) -> list[StreamPlan]:
    """Plans of ``streams`` streams that begin at random within ``spread`` seconds.

    Stream n begins with recording n, counted round. More follow in the same language until
    ``seconds`` have been spoken; none is cut, as its reference would not fit any more.
    """
    chance = random.Random(seed)
    plans = []
    for stream in range(streams):
        first = stream % len(clips)
        following = itertools.cycle((*clips[first:], *clips[:first]))
        chosen = [next(following)]
        spoken = chosen[0].seconds
        while spoken < seconds and any(clip.seconds for clip in clips):
            clip = next(following)
            if clip.language == chosen[0].language:
                chosen.append(clip)
                spoken += PAUSE_SECONDS + clip.seconds
        delay = chance.uniform(0.0, spread)
        plans.append(StreamPlan(stream=stream, delay=delay, clips=tuple(chosen)))
    return plans


def share_out(plans: Sequence[StreamPlan], processes: int) -> list[list[StreamPlan]]:
    """Deal the plans to at most ``processes`` processes; none gets nothing."""
    return [share for share in (list(plans[at::processes]) for at in range(processes)) if share]


def join_references(clips: Sequence[Clip]) -> tuple[str, ...]:
    """Ways to write all that is said, one recording after the other; none if any is not known."""
    if not all(clip.references for clip in clips):
        return ()
    ways = max(len(clip.references) for clip in clips)
    texts = [
        " ".join(clip.references[min(way, len(clip.references) - 1)] for clip in clips)
        for way in range(ways)
    ]
    return tuple(dict.fromkeys(texts))
