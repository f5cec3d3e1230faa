"""A stream of speech over connections that are cut in mid-frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from whisper_stream.clients.sdk.connection import ReconnectingStream, connect
from whisper_stream.server.protocol import messages as wire

from .server_rig import speech

AUDIO = speech(20.0, seed=5)


def words(messages: list[wire.ServerMessage]) -> list[wire.Word]:
    return [word for m in messages if isinstance(m, wire.Commit) for word in m.words]


class Cutter:
    """A proxy that drops each of its first connections after so many bytes, in mid-frame."""

    def __init__(self, port: int, limits: list[int]) -> None:
        self.port = port
        self.limits = limits
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, or the test is over
        finally:
            await _abort(writer)
            self.tasks.discard(task)

    def cut(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = [self.limits.pop(0) if self.limits else 1 << 60]
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(8192)):
                sink.write(data[: left[0]])
                left[0] -= len(data)
                await sink.drain()

        pumps = [
            asyncio.create_task(pump(reader, far_writer)),
            asyncio.create_task(pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _abort(far_writer)


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def cutter(port: int, limits: list[int]) -> AsyncIterator[tuple[Cutter, str]]:
    proxy = Cutter(port, limits)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(proxy.tasks):
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)


async def speak(stream: ReconnectingStream, audio: bytes, pause: float = 0.0) -> None:
    for at in range(0, len(audio), 6_401):
        await stream.send_audio(audio[at : at + 6_401])
        await asyncio.sleep(pause)
    await stream.flush("last")
    await stream.eos()


async def converse(url: str, audio: bytes = AUDIO, pause: float = 0.0) -> list[wire.ServerMessage]:
    async with connect(url, wire.Start(language="en")) as stream:
        incoming = aiter(stream)
        messages = [await anext(incoming)]
        speaking = asyncio.create_task(speak(stream, audio, pause))
        messages += [message async for message in incoming]
        await speaking
        return messages
