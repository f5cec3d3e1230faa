"""What a stream says until its client has it; and the queue to one websocket: order, partials, the end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.protocol.errors import CloseCode
from whisper_stream.server.protocol.messages import (
    Ack,
    Commit,
    Lag,
    Partial,
    Pong,
    Resumed,
    ServerMessage,
    Snapshot,
)
from whisper_stream.server.stream.outbox import Outbox, SendQueue


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


RESUMED = Resumed(session="s", samples=0, bytes=0, controls=0)


def numbered(message: ServerMessage, seq: int) -> ServerMessage:
    return msgspec.structs.replace(message, seq=seq)


def attached(outbox: Outbox, seen: int) -> list[ServerMessage]:
    """What the next connection of a client gets that has seen messages up to ``seen``."""
    queue = SendQueue()
    outbox.attach(queue, RESUMED, seen)
    outbox.detach(queue)
    first, *rest = queue.waiting()
    assert first == numbered(RESUMED, seen)
    return rest


def test_what_lasts_is_kept_for_the_next_connection_until_it_is_acknowledged() -> None:
    queue = SendQueue()
    outbox = Outbox(queue, keep=True)
    for number in range(1, 4):
        outbox.publish(commit(number))
    outbox.detach(queue)
    outbox.publish(commit(4))
    assert [message.seq for message in queue.waiting()] == [1, 2, 3]
    assert attached(outbox, seen=2) == [numbered(commit(n), n) for n in (3, 4)]
    outbox.acknowledge(3)
    assert attached(outbox, seen=3) == [numbered(commit(4), 4)] and outbox.kept == 1
    outbox.give_up()
    assert attached(outbox, seen=4) == []


def test_what_passes_is_numbered_and_not_kept() -> None:
    outbox = Outbox(keep=True)
    outbox.publish(Ack(samples=1))
    outbox.publish(Lag(behind=1.0, interval=1.0))
    outbox.reply(Pong(id="p"))
    outbox.publish(commit(4))
    assert attached(outbox, seen=0) == [numbered(commit(4), 4)]


def test_the_newest_partial_is_said_again_to_each_connection() -> None:
    outbox = Outbox(keep=True)
    outbox.publish(partial(1))
    outbox.publish(partial(2))
    outbox.publish(commit(3))
    assert attached(outbox, seen=3) == [numbered(partial(2), 4)]
    assert attached(outbox, seen=4) == [numbered(partial(2), 5)]


def test_a_client_that_has_seen_more_is_not_told_old_numbers() -> None:
    outbox = Outbox(keep=True)
    outbox.publish(commit(1))
    assert attached(outbox, seen=7) == []
    outbox.publish(commit(8))
    assert attached(outbox, seen=7) == [numbered(commit(8), 8)]


def test_the_stream_waits_for_a_client_that_does_not_acknowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whisper_stream.server.stream.outbox.MOST_KEPT", 2)

    async def scenario() -> None:
        outbox = Outbox(keep=True)
        outbox.publish(commit(1))
        await outbox.writable()
        outbox.publish(commit(2))
        waiting = asyncio.create_task(outbox.writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.acknowledge(1)
        await waiting

    asyncio.run(scenario())


def test_readers_get_a_snapshot_and_then_what_is_public() -> None:
    outbox = Outbox()
    outbox.publish(commit(1))
    outbox.publish(partial(2))
    reader = outbox.join(())
    outbox.reply(Pong(id="between the client and us"))
    outbox.publish(Ack(samples=1))
    outbox.publish(commit(5))
    first, second = reader.waiting()
    assert isinstance(first, Snapshot) and first.seq == 2
    assert second == numbered(commit(5), 5)
    outbox.leave(reader)
    outbox.publish(commit(6))
    assert len(reader) == 2 and outbox.readers == 0


def test_the_end_is_the_end_for_all_who_are_there_and_who_come() -> None:
    queue = SendQueue()
    outbox = Outbox(queue, keep=True)
    reader = outbox.join(())
    outbox.close(CloseCode.INTERNAL_ERROR, "internal")
    outbox.close(CloseCode.NORMAL, "done")
    outbox.publish(commit(1))
    later, late_reader = SendQueue(), outbox.join(())
    outbox.attach(later, RESUMED, 0)
    assert queue.closing == later.closing == (CloseCode.INTERNAL_ERROR, "internal")
    assert reader.closing == (CloseCode.NORMAL, "done")
    assert late_reader.closing is not None and outbox.seq == 0
