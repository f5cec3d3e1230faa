"""One websocket connection: what the protocol makes of its frames, carried out by two tasks.

reader: socket -> protocol -> stream;  writer: queue -> socket. The stream has a task of its own, and may
outlive the connection. Whatever goes wrong in one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from ... import WhisperStreamError
from ...streamer.commands import Audio
from ..config import ServerConfig
from ..errors import JournalError, error_origin
from ..protocol.codec import Codec
from ..protocol.errors import CloseCode, ErrorCode, ProtocolError, WarningCode
from ..protocol.messages import Error, Resume, Seen, ServerMessage, Start
from ..protocol.state import Close, Outcome, ProtocolState, Reply, ServerProtocol
from ..stream.outbox import Outbox, SendQueue
from ..stream.registry import Streams
from ..stream.runner import StreamRunner
from .asgi import send_frame
from .auth import Meter

__all__ = ["IdleReader", "StreamConnection"]


class IdleReader:
    """Reads a websocket, and notices a client that is silent for too long."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._loop = asyncio.get_running_loop()
        # Of the latest wait, and of the latest that had an end: seconds that the client may be silent.
        self._patience: float | None = None
        self._interval = 0.0
        # Of the reader, while it waits for a frame, and since when: to wake it without one.
        self._waiting: asyncio.Timeout | None = None
        self._waiting_since = 0.0
        # One timer looks after all waits: arming one for every frame costs more than reading it.
        self._watchdog: asyncio.TimerHandle | None = None

    async def next(self, patience: float | None) -> Message | None:
        """Return the next frame; None: nothing came for long, or ``wake`` was called.

        Args:
            patience: seconds that the client may be silent; None: nothing is expected, wait for ever.
        """
        self._patience = patience
        if patience is not None and self._watchdog is None:
            self._watchdog = self._loop.call_later(patience, self._look)
        self._interval = self._interval if patience is None else patience
        self._waiting_since = self._loop.time()
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._websocket.receive()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def wake(self) -> None:
        """End the reader's wait, if anything is expected. A frame that comes meanwhile is not lost."""
        expects = self._waiting is not None and self._patience is not None
        if expects and self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())

    def close(self) -> None:
        """Stop the timer."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _look(self) -> None:
        silent = 0.0 if self._waiting is None else self._loop.time() - self._waiting_since
        if silent >= self._interval:
            self.wake()
            silent = 0.0
        self._watchdog = self._loop.call_later(self._interval - silent, self._look)


logger = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0  # for a close frame to a client that may not be reading


class StreamConnection:
    """Serves one accepted websocket until it is closed.

    Args:
        websocket: accepted, with ``codec`` as its negotiated form.
        languages: codes that the model knows; empty for one that knows English only.
        meter: counts the audio, and knows how much is allowed.
        full: returns why no further stream may be opened now, if so.
        relay: serves a resume of another process's stream to its end; False: the stream is not one's.
    """

    def __init__(
        self,
        websocket: WebSocket,
        codec: Codec,
        streams: Streams,
        config: ServerConfig,
        languages: tuple[str, ...],
        meter: Meter,
        full: Callable[[], tuple[ErrorCode, str] | None],
        relay: Callable[[Resume], Awaitable[bool]],
    ) -> None:
        self._websocket = websocket
        self._codec = codec
        self._streams = streams
        self._config = config
        self._meter = meter
        self._full = full
        self._relay = relay
        self._protocol = ServerProtocol(codec, languages, config.endpoint_silence)
        self._queue = SendQueue()
        # Numbers what is said before there is a stream; then the stream's own.
        self._outbox = Outbox(self._queue)
        self._loop = asyncio.get_running_loop()
        # The daemon is about to stop.
        self._stopping = False
        self._frames = IdleReader(websocket)
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._stream: StreamRunner | None = None

    def stop(self) -> None:
        """Finish the stream soon: what was received is still committed and delivered."""
        self._stopping = True
        self._frames.wake()

    async def supersede(self) -> None:
        """Another connection goes on with the stream: take no more audio, say why, and close."""
        if self._stream is not None:
            self._stream.outbox.detach(self._queue)
            self._stream = None
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        text = "the stream was resumed on another connection"
        self._queue.put(Error(code=ErrorCode.TAKEN_OVER, message=text))
        self._queue.close(CloseCode.POLICY_VIOLATION, ErrorCode.TAKEN_OVER)

    async def run(self) -> None:
        """Serve until the connection is closed by either side."""
        started = self._loop.time()
        writer = self._writer = asyncio.create_task(self._guard("writer", self._write))
        reader = self._reader = asyncio.create_task(self._guard("reader", self._read))
        try:
            await asyncio.wait({writer})
        finally:
            self._frames.close()
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            seconds = self._loop.time() - started
            # Whoever only knocks is counted in the metrics, if refused; lines are for streams.
            level = logging.DEBUG if self._stream is None else logging.INFO
            logger.log(level, "event=stream_closed stream=%s seconds=%.1f", self._name, seconds)
            if self._stream is not None:
                self._stream.outbox.detach(self._queue)
                await self._streams.leave(self._stream, self)

    @property
    def _name(self) -> str:
        return "-" if self._stream is None else self._stream.id

    async def _read(self) -> None:
        while True:
            await self._queue.writable()
            frame = None
            if not (self._stopping and self._expects_input):
                frame = await self._frames.next(self._patience if self._expects_input else None)
            if frame is None:
                await self._perform(self._on_stop() if self._stopping else self._on_silence())
            elif frame["type"] == "websocket.disconnect":
                self._hang_up()
                return
            else:
                text = frame.get("text")
                await self._perform(
                    self._protocol.receive(frame["bytes"] if text is None else text)
                )

    @property
    def _patience(self) -> float:
        """Seconds that a client may be silent: fewer before it has said what it wants."""
        if self._protocol.state is ProtocolState.EXPECT_START:
            return min(self._config.handshake_timeout, self._config.idle_timeout)
        return self._config.idle_timeout

    @property
    def _expects_input(self) -> bool:
        """True while audio, or the beginning of a stream, is expected."""
        return self._protocol.state in (ProtocolState.EXPECT_START, ProtocolState.STREAMING)

    def _on_silence(self) -> list[Outcome]:
        text = f"nothing came for {self._patience:g} seconds; send audio or ping"
        return self._protocol.fail(ErrorCode.IDLE_TIMEOUT, text, CloseCode.POLICY_VIOLATION)

    def _on_stop(self) -> list[Outcome]:
        """End the stream, as the daemon stops; with a journal, it goes on in the next one."""
        stream = self._stream
        if stream is not None and stream.journal.active:
            stream.suspended = True
            return self._protocol.suspend()
        return self._protocol.stop()

    async def _perform(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Start():
                    await self._open(outcome)
                case Resume():
                    await self._resume(outcome)
                case Seen(seq=seq):
                    self._outbox.acknowledge(seq)
                case Reply(message=message):
                    self._reply(message)
                case Close(code=code, reason=reason):
                    self._queue.close(code, reason)
                case _ if (stream := self._stream) is not None:
                    before = stream.seconds_in
                    await stream.feed(outcome)
                    if isinstance(outcome, Audio):
                        await self._meter_audio(stream, outcome, stream.seconds_in - before)

    async def _meter_audio(self, stream: StreamRunner, audio: Audio, seconds: float) -> None:
        refused = self._meter.count(len(audio.data), seconds)
        if refused is not None:
            await self._refuse(ErrorCode.LIMIT_REACHED, refused)
        if stream.ended:  # the audio was damaged
            self._protocol.end_input()

    def _reply(self, message: ServerMessage) -> None:
        if self._stream is None:
            self._outbox.reply(message)
        else:
            self._stream.reply(message)

    async def _refuse(self, code: ErrorCode, text: str) -> None:
        await self._perform(self._protocol.fail(code, text, CloseCode.POLICY_VIOLATION))

    async def _open(self, start: Start) -> None:
        full = self._full()
        if full is not None:
            await self._perform(self._protocol.fail(*full, CloseCode.TRY_AGAIN_LATER))
            return
        self._stream = self._streams.open(start, self._outbox, self)

    async def _resume(self, resume: Resume) -> None:
        if self._stopping:
            return  # the reader, told to stop, says so; the next daemon has the stream
        if await self._relay(resume):
            raise WebSocketDisconnect(CloseCode.NORMAL)  # all was said, there
        try:
            stream = await self._streams.resume(resume, self)
        except ProtocolError as error:
            await self._refuse(error.code, error.message)
            return
        self._stream = stream
        self._outbox = stream.outbox
        self._protocol.resume(stream.start, stream.ack.bytes, ended=stream.ended)
        stream.attach(self._queue, resume.seq)

    async def _write(self) -> None:
        while (message := await self._queue.get()) is not None:
            if self._stream is not None:
                # What a client has seen must be true for the next daemon too.
                try:
                    await self._stream.journal.durable(self._stream.outbox.seq)
                except JournalError as error:
                    await self._give_up(self._stream, error)
                    return
            await self._send(message)
        assert self._queue.closing is not None  # get() returns None only after close()
        code, reason = self._queue.closing
        if self._stopping and code is CloseCode.NORMAL:
            code, reason = CloseCode.SERVICE_RESTART, WarningCode.SHUTTING_DOWN
        await self._websocket.close(code, reason)

    async def _send(self, message: ServerMessage) -> None:
        if isinstance(message, Error):
            self._meter.metrics.errors[message.code] += 1
        frame = self._codec.encode(message)
        async with asyncio.timeout(self._config.idle_timeout):
            await send_frame(self._websocket, frame)

    async def _give_up(self, stream: StreamRunner, error: JournalError) -> None:
        """End a stream that the journal has failed: its promise cannot be kept, and that is said."""
        logger.error("event=journal_failed stream=%s", stream.id)
        stream.outbox.give_up()
        seq = stream.outbox.seq + 1
        await self._send(Error(seq=seq, code=ErrorCode.JOURNAL_FAILED, message=str(error)))
        await self._websocket.close(CloseCode.INTERNAL_ERROR, ErrorCode.JOURNAL_FAILED)

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """The boundary of a task: nothing that goes wrong inside reaches another stream."""
        try:
            await work()
        except WebSocketDisconnect:
            self._hang_up()
        except WhisperStreamError as error:
            await self._fail(name, error, str(error))
        except Exception as error:  # noqa: BLE001 - any bug ends this stream, and no other
            await self._fail(name, error, "something went wrong in the daemon; its log says where")

    async def _fail(self, name: str, error: Exception, text: str) -> None:
        logger.error(
            "event=stream_failed stream=%s task=%s error=%s at=%s",
            *(self._name, name, type(error).__name__, error_origin(error)),
        )
        if name == "writer":  # nothing can be said any more, except goodbye
            with contextlib.suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._websocket.close(CloseCode.INTERNAL_ERROR, ErrorCode.INTERNAL)
            return
        await self._perform(self._protocol.fail(ErrorCode.INTERNAL, text, CloseCode.INTERNAL_ERROR))

    def _hang_up(self) -> None:
        """The client is gone: stop at once, whatever is still queued."""
        if self._writer is not None:
            self._writer.cancel()
