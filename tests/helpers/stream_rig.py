"""Whole streams through a daemon whose engine may be made to fail, and what their messages say."""

from __future__ import annotations

import msgspec
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.jobs import DecodeJob

from .server_rig import STEP, Daemon

JSON, MSGPACK = wire.SUBPROTOCOLS
POISON = 30_000  # a sample value that makes the scripted engine misbehave
EXPLODE = bytes([0x30, 0x75]) * STEP  # half a second of it


def spoil(job: DecodeJob) -> None:
    if round(float(job.audio[0]) * 32_768) == POISON:
        raise RuntimeError("this text must not reach a log or a client")


def lasting(messages: list[wire.ServerMessage]) -> list[wire.ServerMessage]:
    """What must not depend on timing: no acks, no partials, no numbering, no session."""
    kept = [m for m in messages if not isinstance(m, (wire.Ack, wire.Partial, wire.Ready))]
    return [msgspec.structs.replace(m, seq=0) for m in kept]


def transcript(messages: list[wire.ServerMessage]) -> str:
    return "".join(m.text for m in messages if isinstance(m, wire.Commit))


def numbered(messages: list[wire.ServerMessage]) -> bool:
    """Whether ``seq`` grows; what a newer partial has replaced leaves a hole."""
    numbers = [m.seq for m in messages]
    return numbers[0] == 1 and numbers == sorted(set(numbers))


def errors(messages: list[wire.ServerMessage]) -> list[tuple[str, bool]]:
    return [(m.code, m.fatal) for m in messages if isinstance(m, wire.Error)]


def whole_stream(running: Daemon, subprotocol: str, audio: bytes) -> list[wire.ServerMessage]:
    with running.connect(subprotocol) as peer:
        peer.send(wire.Start())
        peer.audio(audio)
        peer.send(wire.Eos())
        messages, code, reason = peer.rest()
    assert (code, reason) == (1000, "done")
    return messages
