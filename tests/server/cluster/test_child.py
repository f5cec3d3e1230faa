"""Restarting child processes: the policy without a clock, and processes that are real but small."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from whisper_stream.server.cluster.child import Child, RestartPolicy
from whisper_stream.server.cluster.ipc import EngineReady, Message

WAIT = 20.0  # seconds until a test gives up
# A process that says it is ready, and ends with the channel.
SERVE = """
import socket, sys
from whisper_stream.server.cluster.ipc import Channel, EngineReady
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
channel.send(EngineReady(model="m", languages=()))
channel.receive_first()
"""


def test_a_process_that_lasted_is_started_at_once() -> None:
    policy = RestartPolicy((0.0, 1.0, 5.0))
    policy.on_start()
    policy.on_ready(10.0)
    assert policy.on_end(15.0) == 0.0
    assert policy.failures == 0 and not policy.exhausted


def test_one_that_ends_young_is_started_more_and_more_slowly() -> None:
    policy = RestartPolicy((0.0, 1.0, 5.0))
    pauses = []
    for number in range(4):
        policy.on_start()
        policy.on_ready(10.0 * number)
        pauses.append(policy.on_end(10.0 * number + 4.9))
    assert pauses == [1.0, 5.0, 5.0, 5.0]
    assert policy.exhausted and policy.started


def test_one_that_was_never_ready_has_failed_however_long_it_took() -> None:
    policy = RestartPolicy()
    for now in (100.0, 200.0, 300.0):
        assert not policy.exhausted
        policy.on_start()
        assert policy.on_end(now) == 0.0
    assert policy.exhausted and not policy.started


def test_a_success_makes_up_for_failures() -> None:
    policy = RestartPolicy()
    for _ in range(2):
        policy.on_start()
        policy.on_end(0.0)
    policy.on_start()
    policy.on_ready(0.0)
    policy.on_end(60.0)
    policy.on_start()
    policy.on_end(60.0)
    assert policy.failures == 1 and not policy.exhausted


class Owner:
    """Keeps what a child reports; starts it again until ``most`` processes have ended."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.events: list[str] = []
        self.codes: list[int] = []
        self.ready: asyncio.Queue[Child] = asyncio.Queue()
        self.over = asyncio.Event()

    def on_start(self, child: Child) -> None:
        self.events.append("start")

    def on_message(self, child: Child, message: Message) -> None:
        assert isinstance(message, EngineReady)
        child.mark_ready()
        self.events.append("ready")
        self.ready.put_nowait(child)

    def on_lost(self, child: Child) -> None:
        assert not child.ready
        self.events.append("lost")

    def on_end(self, child: Child, code: int) -> bool:
        self.codes.append(code)
        if len(self.codes) == self.most:
            self.over.set()
            return False
        return True


def test_a_killed_process_is_started_again_until_the_owner_gives_up() -> None:
    async def run() -> Owner:
        owner = Owner(most=3)
        child = Child(0, [sys.executable, "-c", SERVE], owner, RestartPolicy())
        child.listen()
        async with asyncio.timeout(WAIT):
            for _ in range(3):
                (await owner.ready.get()).send_signal(signal.SIGKILL)
            await owner.over.wait()
        child.close()
        return owner

    owner = asyncio.run(run())
    assert owner.events == ["start", "ready", "lost"] * 3
    assert owner.codes == [-signal.SIGKILL] * 3


@pytest.mark.parametrize("stops", [True, False])
def test_a_closed_child_ends_and_is_not_started_again(stops: bool) -> None:
    async def run() -> Owner:
        owner = Owner(most=1)
        child = Child(0, [sys.executable, "-c", SERVE], owner, RestartPolicy())
        child.listen()
        async with asyncio.timeout(WAIT):
            await owner.ready.get()
            if stops:
                child.stop_restarting()
                child.send_signal(signal.SIGTERM)
                await child.wait()
            child.close()
            assert await asyncio.to_thread(child.reap) == (-signal.SIGTERM if stops else 0)
        return owner

    assert asyncio.run(run()).codes == []


def test_a_process_that_does_not_end_is_killed() -> None:
    hangs = SERVE.replace("channel.receive_first()", "import signal; signal.pause()")

    async def run() -> int:
        owner = Owner(most=1)
        child = Child(0, [sys.executable, "-c", hangs], owner, RestartPolicy())
        child.listen()
        async with asyncio.timeout(WAIT):
            await owner.ready.get()
        child.close()
        return child.reap(0.0)

    assert asyncio.run(run()) == -signal.SIGKILL
