"""A daemon without a model: speaks the wire format over a real socket, from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import codec_for

__all__ = ["WORDS", "FakeServer", "Peer", "fake_server", "segment", "talk", "word"]


def word(text: str, start: float, end: float) -> wire.Word:
    return wire.Word(text=text, start=start, end=end, probability=0.9)


def segment(number: int, words: tuple[wire.Word, ...]) -> wire.Segment:
    return wire.Segment(
        id=number,
        text="".join(each.text for each in words),
        start=words[0].start,
        end=words[-1].end,
        language="en",
        words=words,
        avg_logprob=-0.2,
        no_speech_prob=0.01,
        compression_ratio=1.2,
        temperature=0.0,
    )


WORDS = (word(" Ask", 0.0, 0.4), word(" not", 0.4, 0.8), word(" what", 1.2, 1.5))


class Peer:
    """The server's end of one stream. ``received`` holds the client's messages, audio aside."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.received: list[wire.ClientMessage] = []
        self.audio = bytearray()
        self._codec = codec_for(socket.subprotocol)

    async def send(self, *messages: wire.ServerMessage) -> None:
        for message in messages:
            await self.socket.send(self._codec.encode(message))

    async def receive(self) -> wire.ClientMessage:
        message = self._codec.decode_client(await self.socket.recv())
        if isinstance(message, wire.Audio):
            self.audio += message.data
        else:
            self.received.append(message)
        return message

    async def ready(self) -> None:
        """Take ``start`` and answer it."""
        start = await self.receive()
        assert isinstance(start, wire.Start)
        await self.send(
            wire.Ready(
                session="s",
                model="fake",
                language=start.language,
                task=start.task,
                encoding=start.encoding,
                sample_rate=start.sample_rate,
                channels=start.channels,
            )
        )

    async def until_eos(self) -> None:
        while not isinstance(await self.receive(), wire.Eos):
            await self.send(wire.Ack(samples=len(self.audio) // 2))

    async def done(self) -> None:
        samples = len(self.audio) // 2
        await self.send(wire.Done(duration=samples / 16_000, samples=samples, words=len(WORDS)))


Script = Callable[[Peer], Awaitable[None]]


async def talk(peer: Peer) -> None:
    """A whole stream of two segments."""
    await peer.ready()
    await peer.send(wire.Partial(text=" Ask nut", words=(WORDS[0], word(" nut", 0.4, 0.8))))
    await peer.until_eos()
    await peer.send(
        wire.Commit(text=" Ask not", words=WORDS[:2]),
        segment(0, WORDS[:2]),
        wire.Commit(text=" what", words=WORDS[2:]),
        segment(1, WORDS[2:]),
    )
    await peer.done()


class FakeServer:
    """``peers`` lists the streams so far, ``url`` is the address without a path."""

    def __init__(self, script: Script, subprotocols: tuple[str, ...]) -> None:
        self.script = script
        self.subprotocols = [Subprotocol(name) for name in subprotocols] or None
        self.peers: list[Peer] = []
        self.paths: list[str] = []
        self.url = ""

    async def handle(self, socket: ServerConnection) -> None:
        peer = Peer(socket)
        self.peers.append(peer)
        assert socket.request is not None
        self.paths.append(socket.request.path)
        await self.script(peer)

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        async with serve(
            self.handle,
            "127.0.0.1",
            0,
            subprotocols=self.subprotocols,
            max_size=wire.MAX_FRAME_BYTES,
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.url = f"ws://127.0.0.1:{port}"
            started.set()
            await stop.wait()


@contextmanager
def fake_server(
    script: Script = talk, subprotocols: tuple[str, ...] = wire.SUBPROTOCOLS
) -> Iterator[FakeServer]:
    server = FakeServer(script, subprotocols)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(started, stop),))
    thread.start()
    try:
        assert started.wait(10)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
