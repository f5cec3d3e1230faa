"""Websockets as uvicorn reads them, at less cost for streams of small frames."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

__all__ = ["READ_AHEAD_BYTES", "READ_AHEAD_FRAMES", "ReadAheadWebSocket"]

# Waiting for the stream that they belong to. More stays in the kernel, and TCP holds up the sender.
READ_AHEAD_FRAMES = 8
READ_AHEAD_BYTES = 16 * 1024  # of one frame


class ReadAheadWebSocket(WebSocketsSansIOProtocol):
    """Reads a few small frames ahead.

    Stopping to read after every frame, and beginning again, costs two system calls, for each tenth of
    a second of every stream.
    """

    def send_receive_event_to_app(self) -> None:
        """Queue a message that is complete; stop reading if much waits."""
        small = sum(len(frame) for frame in self.frames) <= READ_AHEAD_BYTES
        if small and not self.read_paused and self.queue.qsize() < READ_AHEAD_FRAMES:
            self.read_paused = True  # so that it is not paused by what follows
            super().send_receive_event_to_app()
            self.read_paused = False
        else:
            super().send_receive_event_to_app()
