"""One stream of a load: audio at the pace of speech, and how long after it each word was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ..server import wire
from ..server.errors import ErrorCode
from .errors import ConnectError, ConnectionLost, RemoteError, StreamError
from .load_line import LoadLine, Piece, cut, open_line
from .load_plan import PAUSE_SECONDS, StreamPlan
from .source import SAMPLE_RATE, Pacer

__all__ = ["DRAIN_SECONDS", "StreamOutcome", "play_stream"]

DRAIN_SECONDS = 60.0  # for the last words, once all audio is sent
_SILENCE = cut(bytes(round(PAUSE_SECONDS * SAMPLE_RATE) * 2))
_FULL_STATUS = (429, 503)
_TRY_AGAIN_LATER = 1013
_FULL = (ErrorCode.TOO_MANY_STREAMS, "overloaded", "limit_reached")


class StreamOutcome(msgspec.Struct, kw_only=True):
    """What one stream came to. ``refused`` and ``failed`` say why, where it was so."""

    stream: int
    audio_seconds: float = 0.0  # sent
    delays: list[float] = []  # seconds from a word's end in speech to its commit, in order
    text: str = ""
    lag_max: float = 0.0  # seconds behind, as the server said
    late_max: float = 0.0  # seconds that this end sent audio too late: it or the server is slow
    refused: str | None = None
    failed: str | None = None


async def play_stream(
    plan: StreamPlan, audio: Sequence[Sequence[Piece]], url: str, key: str | None = None
) -> StreamOutcome:
    """Play ``audio``, the pieces of each clip, on one connection; never raises StreamError."""
    await asyncio.sleep(plan.delay)
    play = _Play(plan, audio)
    try:
        async with open_line(url, wire.Start(language=plan.language), key) as line:
            await play.converse(line)
    except StreamError as error:
        reason = None if play.opened else _refusal(error)
        play.outcome.refused = reason
        play.outcome.failed = str(error) if reason is None else None
    return play.outcome


def _refusal(error: StreamError) -> str | None:
    """Why the server had no room for the stream, if that is what the error says."""
    match error:
        case ConnectError(status=status) if status in _FULL_STATUS:
            return f"HTTP {status}"
        case ConnectionLost(code=code) if code == _TRY_AGAIN_LATER:
            return error.reason or f"closed with {code}"
        case RemoteError(code=name) if name in _FULL:
            return name
    return None


class _Play:
    def __init__(self, plan: StreamPlan, audio: Sequence[Sequence[Piece]]) -> None:
        self._pieces: list[Piece] = []
        for number, pieces in enumerate(audio):
            self._pieces += [*(_SILENCE if number else ()), *pieces]
        self._began = 0.0  # when the first sample was spoken, on the loop's clock
        self.opened = False
        self.outcome = StreamOutcome(stream=plan.stream, delays=[])

    async def converse(self, line: LoadLine) -> None:
        """Send all, and take messages until the server is done."""
        length = sum(piece.samples for piece in self._pieces) / SAMPLE_RATE
        try:
            async with asyncio.timeout(length + DRAIN_SECONDS):
                async with asyncio.TaskGroup() as group:
                    sender = group.create_task(self._send(line))
                    async for message in line.messages():
                        self._take(message)
                    sender.cancel()
        except TimeoutError:
            raise StreamError(f"the server was not done {DRAIN_SECONDS:.0f} s later") from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _send(self, line: LoadLine) -> None:
        clock = asyncio.get_running_loop().time
        self._began = clock()
        pacer = Pacer(1.0, clock)
        pacer.delay(0)
        due = 0
        for piece in self._pieces:
            due += piece.samples
            await asyncio.sleep(pacer.delay(due))
            late = clock() - self._began - due / SAMPLE_RATE
            self.outcome.late_max = max(self.outcome.late_max, late)
            await line.send(piece.frame)
            self.outcome.audio_seconds = due / SAMPLE_RATE
        await line.end()

    def _take(self, message: wire.ServerMessage) -> None:
        now = asyncio.get_running_loop().time()
        outcome = self.outcome
        match message:
            case wire.Ready():
                self.opened = True
            case wire.Commit(words=words):
                outcome.delays += [now - self._began - word.end for word in words]
                outcome.text += message.text
            case wire.Lag(behind=behind):
                outcome.lag_max = max(outcome.lag_max, behind)
            case wire.Gap(start=start, end=end, reason=reason):
                outcome.failed = f"{end - start:.2f} s were not transcribed: {reason}"
