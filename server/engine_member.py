"""One engine process, as its parent sees it: started, listened to, ended. See ``engine_pool.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ..streamer.jobs import DecodeJob, DecodeResult
from .arena import Arena
from .channel import Channel
from .errors import ConfigError, ProcessError
from .figures import Figures
from .ipc import Broken, Decoding
from .job_line import JobLine

__all__ = ["EngineMember"]

_END_SECONDS = 10.0  # that a process may take to end


class EngineMember:
    """Starts the process; it is to be told first what to load, by ``channel``.

    Attributes:
        ready: jobs may be sent.
        since: when it was ready; None: it never was.
        failures: of the processes of this number before it, in a row.
        statistics, figures: what it said last.

    Args:
        command: starts it, with the descriptors of line and arena behind.
        on_dropped: called with this member, and a job that the process gave up as it can run none any more.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        on_dropped: Callable[[EngineMember, DecodeJob, Future[DecodeResult]], None],
        failures: int,
    ) -> None:
        self.number = number
        self.ready = False
        self.since: float | None = None
        self.failures = failures
        self.statistics: dict[str, int | float] = {}
        self.figures = Figures()
        near, far = socket.socketpair()
        arena = Arena.create()
        descriptors = [far.fileno(), arena]
        try:
            self._process = subprocess.Popen(
                [*command, *(str(each) for each in descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # ours is for the address
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent
            )
            self.channel = Channel(near)
            self.line = JobLine(
                self.channel, Arena(arena), lambda job, future: on_dropped(self, job, future)
            )
        finally:
            far.close()
            os.close(arena)

    def first_words(self) -> tuple[str, tuple[str, ...]]:
        """Wait for the process to load its model, before ``channel`` is started -> its name and languages.

        Raises ConfigError with the sentence of one that cannot, ProcessError where it ends without.
        """
        match self.channel.first():
            case Decoding(model=model, languages=languages):
                return model, languages
            case Broken(sentence=sentence):
                raise ConfigError(sentence)
            case _:
                raise ProcessError("an engine process ended at its start; its log says why")

    def end(self) -> int:
        """Wait for the process, whose line is cut, and kill it where it does not end -> its exit code."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
