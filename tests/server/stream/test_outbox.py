"""The queue to one client: order, stale partials, water marks, the end."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.protocol.errors import CloseCode
from whisper_stream.server.protocol.messages import Commit, Partial, ServerMessage
from whisper_stream.server.stream.outbox import SendQueue


def partial(number: int) -> Partial:
    return Partial(text=str(number), words=())


def commit(number: int) -> Commit:
    return Commit(text=str(number), words=())


def drained(queue: SendQueue) -> list[ServerMessage]:
    async def drain() -> list[ServerMessage]:
        queue.close(CloseCode.NORMAL, "done")
        messages = []
        while (message := await queue.get()) is not None:
            messages.append(message)
        return messages

    return asyncio.run(drain())


@given(st.lists(st.booleans()))
def test_only_partials_are_dropped_and_the_newest_is_kept(are_partial: list[bool]) -> None:
    queue = SendQueue()
    sent = [partial(n) if is_one else commit(n) for n, is_one in enumerate(are_partial)]
    for message in sent:
        queue.put(message)
    newest = [m for m in sent if isinstance(m, Partial)][-1:]
    assert drained(queue) == [m for m in sent if isinstance(m, Commit) or m in newest]


def test_a_partial_already_taken_is_not_touched() -> None:
    async def scenario() -> list[ServerMessage | None]:
        queue = SendQueue()
        queue.put(partial(1))
        first = await queue.get()
        queue.put(partial(2))
        return [first, await queue.get()]

    assert asyncio.run(scenario()) == [partial(1), partial(2)]


def test_producers_wait_between_the_water_marks() -> None:
    async def scenario() -> None:
        queue = SendQueue(high_water=4, low_water=1)
        for number in range(4):
            await queue.writable()
            queue.put(commit(number))
        waiting = asyncio.create_task(queue.writable())
        for _ in range(2):
            await queue.get()
            await asyncio.sleep(0)
            assert not waiting.done()
        await queue.get()
        await waiting
        assert len(queue) == 1

    asyncio.run(scenario())


def test_nothing_follows_a_close_and_the_first_one_counts() -> None:
    queue = SendQueue()
    queue.put(commit(1))
    queue.close(CloseCode.INTERNAL_ERROR, "internal")
    queue.put(commit(2))
    assert drained(queue) == [commit(1)]
    assert queue.closing == (CloseCode.INTERNAL_ERROR, "internal")


def test_a_reader_that_waits_is_woken() -> None:
    async def scenario() -> list[ServerMessage | None]:
        queue = SendQueue()
        waiting = [asyncio.create_task(queue.get())]
        await asyncio.sleep(0)
        queue.put(commit(1))
        first = await waiting[0]
        last = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.close(CloseCode.NORMAL, "done")
        return [first, await last]

    assert asyncio.run(scenario()) == [commit(1), None]
