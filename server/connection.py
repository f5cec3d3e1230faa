"""One websocket connection: the protocol's actions carried out by three tasks.

reader: socket -> protocol -> stream;  pump: stream <-> engine;  writer: outbox -> socket. Whatever
goes wrong in one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import WhisperStreamError
from ..streamer.ingest import PcmIngest
from .bridge import Engine, StreamBridge
from .codec import Codec
from .config import ServerConfig
from .errors import CloseCode, ErrorCode, WarningCode
from .outbox import Outbox
from .protocol import (
    Action,
    CloseConnection,
    FinishStream,
    FlushStream,
    OpenStream,
    ProtocolState,
    PushAudio,
    Reply,
    ServerProtocol,
)
from .wire import Ready, Start

__all__ = ["StreamConnection"]

logger = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0  # for a close frame to a client that may not be reading


class StreamConnection:
    """Serves one accepted websocket until it is closed.

    Args:
        websocket: accepted, with ``codec`` as its negotiated form.
        stream_id: names the stream in ``ready`` and in the log.
    """

    def __init__(
        self,
        websocket: WebSocket,
        codec: Codec,
        engine: Engine,
        config: ServerConfig,
        stream_id: str,
    ) -> None:
        self._websocket = websocket
        self._codec = codec
        self._engine = engine
        self._config = config
        self._stream_id = stream_id
        self._protocol = ServerProtocol(codec, engine.languages)
        self._outbox = Outbox()
        self._loop = asyncio.get_running_loop()
        # Resolved with the bridge when the client's start is accepted.
        self._opened: asyncio.Future[StreamBridge] = self._loop.create_future()
        # Resolved when the daemon is about to stop.
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._writer: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Finish the stream soon: what was received is still committed and delivered."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def run(self) -> None:
        """Serve until the connection is closed by either side."""
        started = self._loop.time()
        writer = self._writer = asyncio.create_task(self._guard("writer", self._write))
        others = [
            asyncio.create_task(self._guard("reader", self._read)),
            asyncio.create_task(self._guard("pump", self._pump)),
        ]
        try:
            await asyncio.wait({writer})
        finally:
            for task in (writer, *others):
                task.cancel()
            await asyncio.gather(writer, *others, return_exceptions=True)
            if self._opened.done() and not self._opened.cancelled():
                self._opened.result().close()
            seconds = self._loop.time() - started
            logger.info("event=stream_closed stream=%s seconds=%.1f", self._stream_id, seconds)

    async def _read(self) -> None:
        receiving: asyncio.Task[Message] | None = None
        try:
            while True:
                await self._outbox.writable()
                receiving = receiving or asyncio.create_task(self._websocket.receive())
                await self._wait_for(receiving)
                if self._is_live() and self._stopping.done():
                    await self._perform(self._protocol.stop())
                elif not receiving.done():
                    await self._perform(self._idle_actions())
                elif receiving.result()["type"] == "websocket.disconnect":
                    self._hang_up()
                    return
                else:
                    frame, receiving = receiving.result(), None
                    await self._perform(self._take(frame))
        finally:
            if receiving is not None:
                receiving.cancel()

    async def _wait_for(self, receiving: asyncio.Task[Message]) -> None:
        """Wait for a frame; while audio is expected, also for the daemon's stop and the timeout."""
        if self._is_live():
            either: set[asyncio.Future[Any]] = {receiving, self._stopping}
            await asyncio.wait(
                either,
                timeout=self._config.idle_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
        else:
            await asyncio.wait({receiving})

    def _is_live(self) -> bool:
        return self._protocol.state in (ProtocolState.EXPECT_START, ProtocolState.STREAMING)

    def _take(self, frame: Message) -> list[Action]:
        text = frame.get("text")
        if text is not None:
            return self._protocol.receive_text(text)
        return self._protocol.receive_binary(frame["bytes"])

    def _idle_actions(self) -> list[Action]:
        text = f"nothing came for {self._config.idle_timeout:g} seconds; send audio or ping"
        return self._protocol.fail(ErrorCode.IDLE_TIMEOUT, text, CloseCode.POLICY_VIOLATION)

    async def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case OpenStream(start=start):
                    self._open(start)
                case PushAudio(data=data):
                    await self._opened.result().push(data)
                case FlushStream(id=flush_id):
                    self._opened.result().flush(flush_id)
                case FinishStream():
                    await self._opened.result().finish()
                case Reply(message=message):
                    self._outbox.put(message)
                case CloseConnection(code=code, reason=reason):
                    self._outbox.close(code, reason)

    def _open(self, start: Start) -> None:
        options = self._config.stream_config(start, english_only=not self._engine.languages)
        session = self._engine.new_session(options)
        ingest = PcmIngest(start.encoding, start.sample_rate, start.channels)
        self._outbox.put(
            Ready(
                session=self._stream_id,
                model=self._engine.model_name,
                language=options.language,
                task=start.task,
                encoding=start.encoding,
                sample_rate=start.sample_rate,
                channels=start.channels,
            )
        )
        bridge = StreamBridge(session, ingest, self._engine, self._outbox, self._stream_id)
        self._opened.set_result(bridge)
        logger.info(
            "event=stream_opened stream=%s encoding=%s sample_rate=%d channels=%d",
            *(self._stream_id, start.encoding, start.sample_rate, start.channels),
        )

    async def _pump(self) -> None:
        bridge = await self._opened
        await bridge.pump()
        if self._stopping.done():
            self._outbox.close(CloseCode.SERVICE_RESTART, WarningCode.SHUTTING_DOWN)
        else:
            self._outbox.close(CloseCode.NORMAL, "done")

    async def _write(self) -> None:
        seq = 0
        while (message := await self._outbox.get()) is not None:
            seq += 1
            frame = self._codec.encode(msgspec.structs.replace(message, seq=seq))
            async with asyncio.timeout(self._config.idle_timeout):
                if isinstance(frame, str):
                    await self._websocket.send_text(frame)
                else:
                    await self._websocket.send_bytes(frame)
        assert self._outbox.closing is not None  # get() returns None only after close()
        code, reason = self._outbox.closing
        await self._websocket.close(code, reason)

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
        # The error's own text stays out of the log: it may quote what was said.
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = ",".join(f"{frame.name}:{frame.lineno}" for frame in frames)
        logger.error(
            "event=stream_failed stream=%s task=%s error=%s at=%s",
            *(self._stream_id, name, type(error).__name__, where),
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
