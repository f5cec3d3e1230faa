"""Small helpers around requests and websockets, shared by the routes and by the relay between processes."""

from __future__ import annotations

import re

from starlette.websockets import WebSocket

__all__ = ["is_host_header", "send_frame"]

_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")


def is_host_header(text: str) -> bool:
    """Return whether ``text`` is a host and at most a port: what is safe to put into an address or a header."""
    return _HOST.fullmatch(text) is not None


async def send_frame(websocket: WebSocket, frame: str | bytes) -> None:
    """Send ``frame`` as a text or a binary frame, by its type."""
    if isinstance(frame, str):
        await websocket.send_text(frame)
    else:
        await websocket.send_bytes(frame)
