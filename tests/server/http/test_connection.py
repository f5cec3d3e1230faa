"""What clients do wrong, and what goes wrong inside: told to that stream, and noticed by no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import Daemon, Peer, ScriptedEngine, daemon, speech
from ...helpers.stream_rig import EXPLODE, JSON, MSGPACK, errors, lasting, spoil, whole_stream


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with daemon(ScriptedEngine(spoil=spoil), idle_timeout=60.0) as running:
        yield running


# Each misbehaving peer returns the errors it was told, and its close code.
Misdeed = Callable[[Peer], tuple[list[tuple[str, bool]], int]]


def misdeed(*frames: str | bytes, start: bool = True, eos: bool = False) -> Misdeed:
    def act(peer: Peer) -> tuple[list[tuple[str, bool]], int]:
        if start:
            peer.send(wire.Start())
        for frame in frames:
            peer.socket.send(frame)
        if eos:
            peer.send(wire.Eos())
        messages, code, _ = peer.rest()
        return errors(messages), code

    return act


def _huge(peer: Peer) -> tuple[list[tuple[str, bool]], int]:
    peer.send(wire.Start())
    try:
        peer.socket.send(bytes(100_000_000))
    except ConnectionClosed:
        pass  # the server need not read it all
    messages, code, reason = peer.rest()
    assert "exceeds limit" in reason
    return errors(messages), code


def _packed(value: Any) -> bytes:
    frame: bytes = msgpack.packb(value)
    return frame


MISDEEDS: dict[str, tuple[str, Misdeed, list[tuple[str, bool]], int]] = {
    "audio before start": (
        JSON,
        misdeed(bytes(2), start=False),
        [("audio_before_start", True)],
        1008,
    ),
    "audio before start, msgpack": (
        MSGPACK,
        misdeed(_packed({"type": "audio", "data": b"\0\0"}), start=False),
        [("audio_before_start", True)],
        1008,
    ),
    "wrong encoding": (
        JSON,
        misdeed('{"type":"start","encoding":"adpcm"}', start=False),
        [("invalid_field", True)],
        1008,
    ),
    "wrong rate": (
        MSGPACK,
        misdeed(_packed({"type": "start", "sample_rate": 1}), start=False),
        [("invalid_field", True)],
        1008,
    ),
    "odd bytes": (JSON, misdeed(speech(0.5) + b"\0", eos=True), [("odd_bytes", False)], 1000),
    "unknown message": (
        JSON,
        misdeed('{"type":"sing"}', eos=True),
        [("unknown_message", False)],
        1000,
    ),
    "unknown message, msgpack": (
        MSGPACK,
        misdeed(_packed({"type": "sing"}), eos=True),
        [("unknown_message", False)],
        1000,
    ),
    "text for audio": (JSON, misdeed("UklGRiQAAAA="), [("text_frame", True)], 1003),
    "text on msgpack": (MSGPACK, misdeed("UklGRiQAAAA="), [("text_frame", True)], 1003),
    "raw audio on msgpack": (MSGPACK, misdeed(speech(0.1)), [("unreadable_frame", True)], 1003),
    "second start": (
        JSON,
        misdeed('{"type":"start"}', eos=True),
        [("already_started", False)],
        1000,
    ),
    "100 MB frame": (JSON, _huge, [], 1009),
    "100 MB frame, msgpack": (MSGPACK, _huge, [], 1009),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_bad_input_is_answered_and_touches_no_other_stream(shared: Daemon, name: str) -> None:
    subprotocol, act, told, code = MISDEEDS[name]
    audio = speech(2.0, seed=7)
    alone = whole_stream(shared, JSON, audio)
    with ExitStack() as stack:
        healthy = stack.enter_context(shared.connect())
        healthy.send(wire.Start())
        healthy.audio(audio[:20_001])
        with shared.connect(subprotocol) as bad:
            assert act(bad) == (told, code)
        healthy.audio(audio[20_001:])
        healthy.send(wire.Eos())
        messages, closed, _ = healthy.rest()
    assert closed == 1000
    calm = [m for m in lasting(messages) if not isinstance(m, wire.Warning)]
    assert calm == lasting(alone)


def test_a_failed_job_is_told_to_its_session_and_the_stream_goes_on(shared: Daemon) -> None:
    messages = whole_stream(shared, JSON, speech(0.5) + EXPLODE + speech(0.5))
    assert isinstance(messages[-1], wire.Done) and messages[-1].words == 2


def test_a_fault_in_one_stream_ends_only_that_one(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedEngine):
        def new_session(self, config: Any) -> Any:
            session = super().new_session(config)
            if config.language == "de":
                session.feed = lambda samples: [][1]  # type: ignore[method-assign]
            return session

    with daemon(Broken()) as running, running.connect() as bad:
        bad.send(wire.Start(language="de"))
        bad.audio(speech(0.1))
        messages, code, reason = bad.rest()
        assert errors(messages) == [("internal", True)] and (code, reason) == (1011, "internal")
        assert isinstance(whole_stream(running, JSON, speech(0.5))[-1], wire.Done)
    logged = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(logged) == 1 and "error=IndexError" in logged[0]
