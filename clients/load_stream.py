"""One stream of a load: audio at the pace of speech, and how long after it each word was committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from ..server import wire
from ..server.errors import ErrorCode
from .errors import ConnectError, ConnectionLost, RemoteError, StreamError
from .load_plan import PAUSE_SECONDS, StreamPlan
from .source import CHUNK_SAMPLES, SAMPLE_RATE, Pacer
from .stream import StreamConnection, connect

__all__ = ["DRAIN_SECONDS", "StreamOutcome", "play_stream"]

DRAIN_SECONDS = 60.0  # for the last words, once all audio is sent
_BYTES = 2  # of one sample
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


async def play_stream(plan: StreamPlan, audio: Sequence[bytes], url: str) -> StreamOutcome:
    """Play ``audio`` (s16le mono at 16 kHz, one of each clip) on one connection; never raises
    StreamError."""
    await asyncio.sleep(plan.delay)
    play = _Play(plan, audio)
    try:
        start = wire.Start(language=plan.language)
        async with connect(url, start, reconnect_seconds=0.0) as stream:
            await play.converse(stream)
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
    def __init__(self, plan: StreamPlan, audio: Sequence[bytes]) -> None:
        silence = bytes(round(PAUSE_SECONDS * SAMPLE_RATE) * _BYTES)
        self._pcm = silence.join(audio)
        self._began = 0.0  # when the first sample was spoken, on the loop's clock
        self.opened = False
        self.outcome = StreamOutcome(stream=plan.stream, delays=[])

    async def converse(self, stream: StreamConnection) -> None:
        """Send all, and take messages until the server is done."""
        length = len(self._pcm) / _BYTES / SAMPLE_RATE
        try:
            async with asyncio.timeout(length + DRAIN_SECONDS):
                async with asyncio.TaskGroup() as group:
                    sender = group.create_task(self._send(stream))
                    async for message in stream:
                        self._take(message)
                    sender.cancel()
        except TimeoutError:
            raise StreamError(f"the server was not done {DRAIN_SECONDS:.0f} s later") from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _send(self, stream: StreamConnection) -> None:
        clock = asyncio.get_running_loop().time
        self._began = clock()
        pacer = Pacer(1.0, clock)
        pacer.delay(0)
        view = memoryview(self._pcm)
        # The receiver reports a lost connection, with all that arrived before it was lost.
        with contextlib.suppress(ConnectionLost):
            for at in range(0, len(view), CHUNK_SAMPLES * _BYTES):
                chunk = view[at : at + CHUNK_SAMPLES * _BYTES]
                due = (at + len(chunk)) // _BYTES
                await asyncio.sleep(pacer.delay(due))
                late = clock() - self._began - due / SAMPLE_RATE
                self.outcome.late_max = max(self.outcome.late_max, late)
                await stream.send_audio(bytes(chunk))
                self.outcome.audio_seconds = due / SAMPLE_RATE
            await stream.eos()

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
