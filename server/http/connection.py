"""A client's frames as they come, and whether it has been silent for too long.

One websocket connection: the protocol's actions carried out by two tasks.

reader: socket -> protocol -> stream;  writer: outbox -> socket. The stream has a task of its own, and
may outlive the connection. Whatever goes wrong in one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from ... import WhisperStreamError
from ..config import ServerConfig
from ..errors import JournalError
from ..protocol.codec import Codec
from ..protocol.errors import CloseCode, ErrorCode, ProtocolError, WarningCode
from ..protocol.messages import Error, Resume, ServerMessage, Start
from ..protocol.state import (
    Acknowledge,
    Action,
    CloseConnection,
    ConfigureStream,
    FinishStream,
    FlushStream,
    OpenStream,
    ProtocolState,
    PushAudio,
    Reply,
    ResumeStream,
    ServerProtocol,
)
from ..stream.outbox import Mailbox, Outbox
from ..stream.registry import Streams
from ..stream.stream import LiveStream, where
from .auth import Meter

__all__ = ["Frames", "StreamConnection"]


class Frames:
    """What one websocket's client sends, waited for with patience while audio is expected.

    Args:
        patience: seconds that the client may be silent, as things are.
        expected: whether audio, or what begins a stream, is expected now.
    """

    def __init__(
        self, websocket: WebSocket, patience: Callable[[], float], expected: Callable[[], bool]
    ) -> None:
        self._websocket = websocket
        self._patience = patience
        self._expected = expected
        self._loop = asyncio.get_running_loop()
        # Of the reader, while it waits for a frame, and since when: to wake it without one.
        self._waiting: asyncio.Timeout | None = None
        self._waiting_since = 0.0
        # One timer looks after all waits: arming one for every frame costs more than reading it.
        self._watchdog: asyncio.TimerHandle | None = None

    async def next(self) -> Message | None:
        """Return the next frame; None: nothing came for long, or ``wake`` was called."""
        self._waiting_since = self._loop.time()
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._websocket.receive()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def wake(self) -> None:
        """End the reader's wait, if audio is expected. A frame that comes meanwhile is not lost."""
        if self._waiting is not None and not self._waiting.expired() and self._expected():
            self._waiting.reschedule(self._loop.time())

    def watch(self) -> None:
        """Look from now on whether the client is silent for too long, until ``close``."""
        self._watchdog = self._loop.call_later(self._patience(), self._look)

    def close(self) -> None:
        """Watch the client no more."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _look(self) -> None:
        patience = self._patience()
        silent = 0.0 if self._waiting is None else self._loop.time() - self._waiting_since
        if silent >= patience:
            self.wake()
            silent = 0.0
        self._watchdog = self._loop.call_later(patience - silent, self._look)


logger = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0  # for a close frame to a client that may not be reading


class StreamConnection:
    """Serves one accepted websocket until it is closed.

    Args:
        websocket: accepted, with ``codec`` as its negotiated form.
        languages: codes that the model knows.
        meter: counts the audio, and knows how much is allowed.
        full: why no further stream may be opened now, if so.
        relay: serves a resume of another process's stream to its end; False: it is not one's.
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
        relay: Callable[[Resume], Awaitable[bool]] | None = None,
    ) -> None:
        self._websocket = websocket
        self._codec = codec
        self._streams = streams
        self._config = config
        self._languages = languages
        self._meter = meter
        self._full = full
        self._relay = relay
        self._protocol = ServerProtocol(codec, languages)
        self._outbox = Outbox()
        # Numbers what is said before there is a stream; then the stream's own.
        self._mailbox = Mailbox(self._outbox)
        self._loop = asyncio.get_running_loop()
        # The daemon is about to stop.
        self._stopping = False
        self._frames = Frames(websocket, self._patience, self._is_live)
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._stream: LiveStream | None = None

    def stop(self) -> None:
        """Finish the stream soon: what was received is still committed and delivered."""
        self._stopping = True
        self._frames.wake()

    async def supersede(self) -> None:
        """Another connection goes on with the stream: take no more audio, say why, and close."""
        if self._stream is not None:
            self._stream.mailbox.detach(self._outbox)
            self._stream = None
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        text = "the stream was resumed on another connection"
        self._outbox.put(Error(code=ErrorCode.TAKEN_OVER, message=text))
        self._outbox.close(CloseCode.POLICY_VIOLATION, ErrorCode.TAKEN_OVER)

    async def run(self) -> None:
        """Serve until the connection is closed by either side."""
        started = self._loop.time()
        self._frames.watch()
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
                self._stream.mailbox.detach(self._outbox)
                await self._streams.leave(self._stream, self)

    @property
    def _name(self) -> str:
        return "-" if self._stream is None else self._stream.id

    async def _read(self) -> None:
        while True:
            await self._outbox.writable()
            frame = None if self._is_live() and self._stopping else await self._frames.next()
            if frame is None:
                actions = self._on_stop() if self._stopping else self._idle_actions()
                await self._perform(actions)
            elif frame["type"] == "websocket.disconnect":
                self._hang_up()
                return
            else:
                await self._perform(self._take(frame))

    def _patience(self) -> float:
        """Seconds that a client may be silent: fewer before it has said what it wants."""
        if self._protocol.state is ProtocolState.EXPECT_START:
            return min(self._config.handshake_timeout, self._config.idle_timeout)
        return self._config.idle_timeout

    def _is_live(self) -> bool:
        return self._protocol.state in (ProtocolState.EXPECT_START, ProtocolState.STREAMING)

    def _take(self, frame: Message) -> list[Action]:
        text = frame.get("text")
        if text is not None:
            return self._protocol.receive_text(text)
        return self._protocol.receive_binary(frame["bytes"])

    def _idle_actions(self) -> list[Action]:
        text = f"nothing came for {self._patience():g} seconds; send audio or ping"
        return self._protocol.fail(ErrorCode.IDLE_TIMEOUT, text, CloseCode.POLICY_VIOLATION)

    def _on_stop(self) -> list[Action]:
        """The daemon stops: the stream goes on in the next one, where there is a journal."""
        stream = self._stream
        if stream is not None and stream.journal.active:
            stream.suspended = True
            return self._protocol.suspend()
        return self._protocol.stop()

    async def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case OpenStream(start=start):
                    await self._open(start)
                case ResumeStream(resume=resume):
                    await self._resume(resume)
                case Acknowledge(seq=seq):
                    self._mailbox.acknowledge(seq)
                case Reply(message=message):
                    self._mailbox.put(message)
                case CloseConnection(code=code, reason=reason):
                    self._outbox.close(code, reason)
                case PushAudio() | FlushStream() | ConfigureStream() | FinishStream() if (
                    self._stream is not None
                ):
                    await self._drive(self._stream, action)

    async def _drive(
        self, stream: LiveStream, action: PushAudio | FlushStream | ConfigureStream | FinishStream
    ) -> None:
        match action:
            case PushAudio(data=data):
                before = stream.seconds_in
                await stream.push(data)
                refused = self._meter.count(len(data), stream.seconds_in - before)
                if refused is not None:
                    await self._refuse(ErrorCode.LIMIT_REACHED, refused)
                if stream.ended:  # the audio was damaged
                    self._protocol.ended()
            case FlushStream(id=flush_id):
                stream.flush(flush_id)
            case ConfigureStream(config=changes):
                english = not self._languages
                stream.configure(self._config.changed(stream.config, changes, english_only=english))
            case FinishStream():
                stream.finish()

    async def _refuse(self, code: ErrorCode, text: str) -> None:
        await self._perform(self._protocol.fail(code, text, CloseCode.POLICY_VIOLATION))

    async def _open(self, start: Start) -> None:
        full = self._full()
        if full is not None:
            await self._perform(self._protocol.fail(*full, CloseCode.TRY_AGAIN_LATER))
            return
        self._stream = self._streams.open(start, self._mailbox, self)

    async def _resume(self, resume: Resume) -> None:
        if self._stopping:
            return  # the reader, told to stop, says so; the next daemon has the stream
        if self._relay is not None and await self._relay(resume):
            raise WebSocketDisconnect(CloseCode.NORMAL)  # all was said, there
        try:
            stream = await self._streams.resume(resume, self)
        except ProtocolError as error:
            await self._refuse(error.code, error.message)
            return
        self._stream = stream
        self._mailbox = stream.mailbox
        self._protocol.resumed(stream.start, stream.held.bytes, ended=stream.ended)
        self._mailbox.attach(self._outbox, stream.resumed(), resume.seq)

    async def _write(self) -> None:
        while (message := await self._outbox.get()) is not None:
            if self._stream is not None:
                # What a client has seen must be true for the next daemon too.
                try:
                    await self._stream.journal.durable()
                except JournalError as error:
                    await self._give_up(self._stream, error)
                    return
            await self._send(message)
        assert self._outbox.closing is not None  # get() returns None only after close()
        code, reason = self._outbox.closing
        if self._stopping and code is CloseCode.NORMAL:
            code, reason = CloseCode.SERVICE_RESTART, WarningCode.SHUTTING_DOWN
        await self._websocket.close(code, reason)

    async def _send(self, message: ServerMessage) -> None:
        if isinstance(message, Error):
            self._meter.metrics.errors[message.code] += 1
        frame = self._codec.encode(message)
        async with asyncio.timeout(self._config.idle_timeout):
            if isinstance(frame, str):
                await self._websocket.send_text(frame)
            else:
                await self._websocket.send_bytes(frame)

    async def _give_up(self, stream: LiveStream, error: JournalError) -> None:
        """The journal has failed this stream: it cannot keep its promise, and says so."""
        logger.error("event=journal_failed stream=%s", stream.id)
        stream.mailbox.give_up()
        seq = stream.mailbox.seq + 1
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
            *(self._name, name, type(error).__name__, where(error)),
        )
        if name == "writer":  # nothing can be said any more, except goodbye
            with contextlib.suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._websocket.close(CloseCode.INTERNAL_ERROR, ErrorCode.INTERNAL)
            return
        actions = self._protocol.fail(ErrorCode.INTERNAL, text, CloseCode.INTERNAL_ERROR)
        await self._perform(actions)

    def _hang_up(self) -> None:
        """The client is gone: stop at once, whatever is still queued."""
        if self._writer is not None:
            self._writer.cancel()
