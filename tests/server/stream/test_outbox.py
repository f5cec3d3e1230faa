"""The queue to one client: order, stale partials, water marks, the end."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.protocol.errors import CloseCode
from whisper_stream.server.protocol.messages import Commit, Partial, ServerMessage
from whisper_stream.server.stream.outbox import Outbox


def partial(number: int) -> Partial:
    return Partial(text=str(number), words=())


def commit(number: int) -> Commit:
    return Commit(text=str(number), words=())


def drained(outbox: Outbox) -> list[ServerMessage]:
    async def drain() -> list[ServerMessage]:
        outbox.close(CloseCode.NORMAL, "done")
        messages = []
        while (message := await outbox.get()) is not None:
            messages.append(message)
        return messages

    return asyncio.run(drain())


@given(st.lists(st.booleans()))
def test_only_partials_are_dropped_and_the_newest_is_kept(are_partial: list[bool]) -> None:
    outbox = Outbox()
    sent = [partial(n) if is_one else commit(n) for n, is_one in enumerate(are_partial)]
    for message in sent:
        outbox.put(message)
    newest = [m for m in sent if isinstance(m, Partial)][-1:]
    assert drained(outbox) == [m for m in sent if isinstance(m, Commit) or m in newest]


def test_a_partial_already_taken_is_not_touched() -> None:
    async def scenario() -> list[ServerMessage | None]:
        outbox = Outbox()
        outbox.put(partial(1))
        first = await outbox.get()
        outbox.put(partial(2))
        return [first, await outbox.get()]

    assert asyncio.run(scenario()) == [partial(1), partial(2)]


def test_producers_wait_between_the_water_marks() -> None:
    async def scenario() -> None:
        outbox = Outbox(high_water=4, low_water=1)
        for number in range(4):
            await outbox.writable()
            outbox.put(commit(number))
        waiting = asyncio.create_task(outbox.writable())
        for _ in range(2):
            await outbox.get()
            await asyncio.sleep(0)
            assert not waiting.done()
        await outbox.get()
        await waiting
        assert len(outbox) == 1

    asyncio.run(scenario())


def test_nothing_follows_a_close_and_the_first_one_counts() -> None:
    outbox = Outbox()
    outbox.put(commit(1))
    outbox.close(CloseCode.INTERNAL_ERROR, "internal")
    outbox.put(commit(2))
    assert drained(outbox) == [commit(1)]
    assert outbox.closing == (CloseCode.INTERNAL_ERROR, "internal")


def test_a_reader_that_waits_is_woken() -> None:
    async def scenario() -> list[ServerMessage | None]:
        outbox = Outbox()
        waiting = [asyncio.create_task(outbox.get())]
        await asyncio.sleep(0)
        outbox.put(commit(1))
        first = await waiting[0]
        last = asyncio.create_task(outbox.get())
        await asyncio.sleep(0)
        outbox.close(CloseCode.NORMAL, "done")
        return [first, await last]

    assert asyncio.run(scenario()) == [commit(1), None]
