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
    """Return the largest number of streams that a server carries, from 1 to ``most``; 0 if it is none.

    Doubles from ``first`` until it is too much, then halves the range between.

    Args:
        carries: runs a load of a number of streams, and returns whether the server carried it. It is
            called once for each number, and taken to be false above one for which it was.
        first: where the search begins.
        most: where it ends.
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
    """The plan of one connection: recordings in one language, played one after the other."""

    stream: int
    delay: float  # seconds after the start of the run
    clips: tuple[Clip, ...]

    @property
    def language(self) -> str | None:
        """The language of its recordings; None if that is unknown."""
        return self.clips[0].language


def make_plans(
    clips: Sequence[Clip], streams: int, *, seconds: float, spread: float, seed: int
) -> list[StreamPlan]:
    """Return a plan for each stream.

    Stream n begins with recording n, counted round. More follow in the same language until
    ``seconds`` have been spoken; none is cut, as its reference would no longer fit.

    Args:
        clips: the recordings.
        streams: the number of plans.
        seconds: least audio of a stream; 0.0: one recording each.
        spread: seconds within which the streams begin, at random.
        seed: of these random times.
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
    """Deal the plans to at most ``processes`` processes; each gets one plan or more."""
    return [share for share in (list(plans[at::processes]) for at in range(processes)) if share]


def join_references(clips: Sequence[Clip]) -> tuple[str, ...]:
    """Return ways to write the speech of all clips in a row; none if that of one clip is not known."""
    if not all(clip.references for clip in clips):
        return ()
    ways = max(len(clip.references) for clip in clips)
    texts = [
        " ".join(clip.references[min(way, len(clip.references) - 1)] for clip in clips)
        for way in range(ways)
    ]
    return tuple(dict.fromkeys(texts))
