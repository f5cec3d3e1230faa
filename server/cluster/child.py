"""Child processes of the daemon: started, listened to, started again when they end, and ended.

The engine processes and the ingress processes are kept alive by the same machinery::

    start ──► wait for "ready" ──► serve ──► channel lost ──► reap ──► pause ──► start
                                                                └──► give up

``RestartPolicy`` decides on the pauses, and is a state machine without a clock. ``Child`` carries them out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from ... import WhisperStreamError
from ..daemon.process import configure_logging
from ..errors import error_origin
from .ipc import Channel, Message, StartEngine, StartFailed, StartIngress
from .shared_audio import SharedAudioSlots

__all__ = ["Child", "ChildOwner", "RestartPolicy", "run_child"]

_YOUNG_SECONDS = 5.0  # a process that ends sooner after it was ready has failed
_MOST_FAILURES = 3  # in a row, until starting it again is pointless
_END_SECONDS = 10.0  # that a process may take to end, once its channel is cut

_FAILED = {
    "engine": "event=engine_failed error=%s at=%s",
    "ingress": "event=ingress_failed error=%s at=%s",
}

logger = logging.getLogger(__name__)


class RestartPolicy:
    """Decides how long to wait before a process is started again, and counts its failures.

    A process has failed if it ends before it is ready, or within five seconds of that.

    Args:
        pauses: seconds before the next start, by the number of failures in a row.

    Attributes:
        failures: in a row.
        started: the latest process was ready at some time.
    """

    def __init__(self, pauses: Sequence[float] = (0.0,)) -> None:
        self._pauses = pauses
        self._ready_at: float | None = None
        self.failures = 0

    @property
    def started(self) -> bool:
        """True if the latest process was ready at some time."""
        return self._ready_at is not None

    @property
    def exhausted(self) -> bool:
        """True after three failures in a row: starting it again does not help."""
        return self.failures >= _MOST_FAILURES

    def on_start(self) -> None:
        """Note that a process is started."""
        self._ready_at = None

    def on_ready(self, now: float) -> None:
        """Note that the process is ready."""
        self._ready_at = now

    def on_end(self, now: float) -> float:
        """Note that the process has ended; return the seconds to wait before the next start."""
        young = self._ready_at is None or now - self._ready_at < _YOUNG_SECONDS
        self.failures = self.failures + 1 if young else 0
        return self._pauses[min(self.failures, len(self._pauses) - 1)]


class ChildOwner(Protocol):
    """The object that a child reports to, on the event loop."""

    def on_start(self, child: Child) -> None:
        """Greet a new process: send its first message, and attach to ``channel`` and ``audio_slots``."""

    def on_message(self, child: Child, message: Message) -> None:
        """Take a message of the process."""

    def on_lost(self, child: Child) -> None:
        """Let go of the process, whose channel is gone: it sends and receives no more."""

    def on_end(self, child: Child, code: int) -> bool:
        """Take the exit code of a process that has ended; return whether to start it again."""


class Child:
    """One child process, of which there may be several one after the other.

    ``start`` may be called before there is an event loop; all else belongs to the one that ``listen`` is
    called in.

    Args:
        number: of the child, from 0.
        command: starts it; the descriptors of its channel and its audio slots, and ``descriptors``, follow.
        owner: hears of everything that happens.
        policy: of starting it again.
        descriptors: further files that the process gets.

    Attributes:
        channel: to the present process.
        audio_slots: memory shared with it, for the audio of jobs.
        ready: the present process does its work.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        owner: ChildOwner,
        policy: RestartPolicy,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.number = number
        self.policy = policy
        self.ready = False
        self._command = command
        self._owner = owner
        self._descriptors = descriptors
        self._restarting: asyncio.Task[None] | None = None
        self._closed = False
        self.start()

    def start(self) -> None:
        """Start a process, and have the owner greet it."""
        self.policy.on_start()
        near, far = socket.socketpair()
        slots = SharedAudioSlots.create()
        passed = [far.fileno(), slots, *self._descriptors]
        try:
            self._process = subprocess.Popen(
                [*self._command, *(str(each) for each in passed)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # our own is for the address
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which passes it on
            )
        except OSError:
            near.close()
            raise
        else:
            self.audio_slots = SharedAudioSlots(slots)
            self.channel = Channel(near)
        finally:
            far.close()
            os.close(slots)
        self._owner.on_start(self)

    def listen(self) -> None:
        """Begin to take messages, in the running event loop."""
        self.channel.start(lambda message: self._owner.on_message(self, message), self._lose)

    def mark_ready(self) -> None:
        """Note that the process does its work."""
        self.ready = True
        self.policy.on_ready(asyncio.get_running_loop().time())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait until the present process has ended."""
        await asyncio.to_thread(self._process.wait)

    def stop_restarting(self) -> None:
        """Let the process end, whenever it does, without another after it."""
        self._closed = True

    def close(self) -> None:
        """Cut the channel, which ends the process. ``reap`` waits for that."""
        self._closed = True
        self.ready = False
        if self._restarting is not None:
            self._restarting.cancel()
        self.channel.close()

    def reap(self, seconds: float = _END_SECONDS) -> int:
        """Wait for the process to end, kill it after ``seconds``, and return its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _lose(self) -> None:
        self.ready = False
        self._owner.on_lost(self)
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self.policy.on_end(loop.time())
        code = await asyncio.to_thread(self.reap)
        while not self._closed and self._owner.on_end(self, code):
            await asyncio.sleep(pause)
            if self._closed:
                return
            try:
                self.start()
            except OSError:  # no memory or no descriptors: as if it had ended at once
                pause, code = self.policy.on_end(loop.time()), os.EX_OSERR
                continue
            self.listen()
            return


def run_child(
    argv: Sequence[str],
    kind: Literal["engine", "ingress"],
    serve: Callable[[Channel, SharedAudioSlots, StartEngine | StartIngress, list[int]], None],
) -> int:
    """Run the ``main`` of a child process; return its exit code.

    Args:
        argv: the descriptors that ``Child`` appended to the command.
        kind: of the process, for the log.
        serve: does the work, with the channel, the audio slots, the parent's first message, and the further
            descriptors. An error of the package is reported to the parent as a sentence; any other is
            logged with its place.
    """
    line, slots, *descriptors = (int(each) for each in argv)
    channel = Channel(socket.socket(fileno=line))
    audio_slots = SharedAudioSlots(slots)
    os.close(slots)
    start = channel.receive_first()
    if not isinstance(start, StartEngine | StartIngress):
        return 1
    configure_logging(start.config.log_level)
    try:
        serve(channel, audio_slots, start, descriptors)
    except WhisperStreamError as error:
        channel.send(StartFailed(sentence=str(error)))
        return 2
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        logger.error(_FAILED[kind], type(error).__name__, error_origin(error))
        return 1
    finally:
        channel.close()
    return 0
