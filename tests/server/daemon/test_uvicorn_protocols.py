"""The private parts of uvicorn that the daemon relies on are still there."""

from __future__ import annotations

import inspect
import re

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from whisper_stream.server.daemon import uvicorn_protocols

METHODS: dict[type, tuple[str, ...]] = {
    WebSocketsSansIOProtocol: (
        "connection_made",
        "handle_parser_exception",
        "send",
        "send_receive_event_to_app",
    ),
    H11Protocol: (
        "connection_lost",
        "connection_made",
        "data_received",
        "on_response_complete",
        "send_400_response",
    ),
    uvicorn.Server: ("handle_exit", "serve", "shutdown", "startup"),
}
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    WebSocketsSansIOProtocol: (
        "close_sent",
        "close_timeout",
        "close_timer",
        "conn",
        "frames",
        "handshake_complete",
        "loop",
        "queue",
        "read_paused",
        "transport",
    ),
    H11Protocol: ("cycle", "loop", "transport"),
    uvicorn.Server: ("config", "lifespan", "server_state", "should_exit", "started"),
}


def cases(table: dict[type, tuple[str, ...]]) -> list[tuple[type, str]]:
    return [(owner, name) for owner, names in table.items() for name in names]


@pytest.mark.parametrize(("owner", "name"), cases(METHODS))
def test_methods_are_where_they_were(owner: type, name: str) -> None:
    advice = (
        f"uvicorn {uvicorn.__version__} has no {owner.__name__}.{name}; see uvicorn_protocols.py"
    )
    assert callable(vars(owner).get(name)), advice


@pytest.mark.parametrize(("owner", "name"), cases(ATTRIBUTES))
def test_attributes_are_where_they_were(owner: type, name: str) -> None:
    advice = (
        f"uvicorn {uvicorn.__version__} sets no {owner.__name__}.{name}; see uvicorn_protocols.py"
    )
    assert re.search(rf"self\.{name}\b[^=\n]*= ", inspect.getsource(owner)), advice


def test_a_message_is_queued_and_reading_stops_in_the_method_that_is_overridden() -> None:
    """``ReadAheadWebSocket`` sets ``read_paused`` around it, so that reading goes on."""
    source = inspect.getsource(WebSocketsSansIOProtocol.send_receive_event_to_app)
    assert "self.queue.put_nowait" in source
    assert re.search(
        r"if not self\.read_paused:\s+self\.read_paused = True\s+self\.transport", source
    )


def test_nothing_else_is_overridden() -> None:
    ours = (
        uvicorn_protocols.ReadAheadWebSocket,
        uvicorn_protocols.LingeringWebSocket,
        uvicorn_protocols.PatientHttp,
    )
    inherited = {name for owner in (WebSocketsSansIOProtocol, H11Protocol) for name in vars(owner)}
    overridden = {name for each in ours for name in vars(each) if callable(vars(each)[name])}
    listed = {name for names in METHODS.values() for name in names}
    assert overridden & inherited <= listed
