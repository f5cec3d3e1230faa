"""Clients of a daemon of several processes, and what they look at from outside."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from whisper_stream.server.protocol import messages as wire

from .ingress_rig import Running
from .server_rig import Peer, daemon, speech

COUNT = 3
AUDIO = speech(3.2, seed=5)
# Connections to unknown processes: that all meet the same one of three, nobody lives to see.
OFTEN = 12
KEYS = (
    "one:0123456789abcdef streams=2\ntwo:fedcba9876543210 minutes=0.1\ndebug:00112233445566778899\n"
)


def words(messages: list[wire.ServerMessage]) -> list[wire.Word]:
    return [word for m in messages if isinstance(m, wire.Commit) for word in m.words]


def opened(peer: Peer, **options: object) -> wire.Ready:
    peer.send(wire.Start(resume=True, **options))  # type: ignore[arg-type]
    ready = peer.receive()
    assert isinstance(ready, wire.Ready), ready
    return ready


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(url: str, name: str, **headers: str) -> float:
    lines = get(f"{url}/metrics", **headers)[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@contextmanager
def resumed(there: Running, ready: wire.Ready, seq: int) -> Iterator[tuple[Peer, wire.Resumed]]:
    with there.connect() as peer:
        peer.send(wire.Resume(session=ready.session, token=ready.token, seq=seq))
        answer = peer.receive()
        assert isinstance(answer, wire.Resumed), answer
        yield peer, answer


def undisturbed() -> list[wire.Word]:
    with daemon() as alone, alone.connect() as peer:
        opened(peer)
        peer.audio(AUDIO)
        peer.send(wire.Eos())
        return words(peer.rest()[0])
