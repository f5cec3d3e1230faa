"""One stream of a load, played to a scripted server."""

from __future__ import annotations

import asyncio

import pytest
from whisper_stream.clients.errors import ConnectError
from whisper_stream.clients.tools.clips import Clip
from whisper_stream.clients.tools.load_plan import StreamPlan
from whisper_stream.clients.tools.load_worker import StreamOutcome, cut_packets, play_stream
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, Peer, Script, fake_server


def play(url: str, *audio: bytes) -> StreamOutcome:
    clip = Clip(path="a", language="en", seconds=2.0)
    plan = StreamPlan(stream=3, delay=0.0, clips=(clip,) * len(audio))
    return asyncio.run(play_stream(plan, [cut_packets(each) for each in audio], url))


async def early(peer: Peer) -> None:
    """Commits three words that end 1.5 s into audio of a fifth of a second."""
    await peer.ready()
    await peer.until_eos()
    await peer.send(wire.Lag(behind=1.5, interval=1.0), wire.Lag(behind=0.5, interval=1.0))
    await peer.send(wire.Commit(text=" Ask not what", words=WORDS))
    await peer.done()


def test_a_delay_is_counted_from_the_end_of_the_word() -> None:
    with fake_server(early) as server:
        outcome = play(server.url, bytes(6_400))
        assert len(server.peers[0].audio) == 6_400
        assert server.peers[0].received[0] == wire.Start(language="en")
    assert outcome.refused is None and outcome.failed is None
    assert outcome.text == " Ask not what" and outcome.lag_max == 1.5
    assert outcome.audio_seconds == 0.2
    first, second, third = outcome.delays
    assert first >= 0.2 - 0.4  # it came when all audio had been spoken; the word ended at 0.4 s
    assert first - second == pytest.approx(0.4) and second - third == pytest.approx(0.7)


def test_a_second_of_silence_lies_between_recordings() -> None:
    with fake_server() as server:
        play(server.url, b"\x01" * 3_200, b"\x02" * 3_200)
        assert server.peers[0].audio == b"\x01" * 3_200 + bytes(32_000) + b"\x02" * 3_200


def saying(code: str, *, opened: bool = False) -> Script:
    async def script(peer: Peer) -> None:
        await (peer.ready() if opened else peer.receive())
        await peer.send(wire.Error(code=code, message="in words"))
        await peer.socket.close(1013, code)

    return script


async def closing(peer: Peer) -> None:
    await peer.receive()
    await peer.socket.close(1013, "full up")


@pytest.mark.parametrize(
    ("script", "refused", "failed"),
    [
        (saying("too_many_streams"), "too_many_streams", None),
        (saying("overloaded"), "overloaded", None),
        (closing, "full up", None),
        (saying("bad_start"), None, "in words"),
        (saying("overloaded", opened=True), None, "in words"),
    ],
)
def test_refused_is_not_failed(script: Script, refused: str | None, failed: str | None) -> None:
    with fake_server(script) as server:
        outcome = play(server.url, bytes(3_200))
    assert (outcome.refused, outcome.failed) == (refused, failed)


def test_http_503_is_a_refusal_and_404_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, refused in ((503, "HTTP 503"), (429, "HTTP 429"), (404, None)):

        async def refuse(url: str, *options: object, status: int = status, **more: object) -> None:
            raise ConnectError(url, "because", status)

        monkeypatch.setattr("whisper_stream.clients.tools.load_worker.dial", refuse)
        outcome = play("ws://127.0.0.1:1", bytes(2))
        assert outcome.refused == refused
        assert (outcome.failed is None) == (refused is not None)
