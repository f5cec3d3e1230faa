"""One client floods the daemon, one never reads: do four well-behaved ones notice?

    python benchmarks/daemon/fairness.py                          # tiny.en, at the pace of speech
    python benchmarks/daemon/fairness.py --model scripted --speed 8 --repeat 1

Delay is from when the end of a word was sent to when its commit came. First four streams run alone,
then beside one that sends 100 times as fast as it is spoken and one that never takes a message. Prints
one JSON object last.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from argparse import Namespace

from rig import SAMPLE_RATE, Daemon, listen, parser, report, running, speak, speech
from websockets.asyncio.client import connect as raw_connect
from whisper_stream.clients.errors import ClientError
from whisper_stream.clients.sdk.connection import connect
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import JsonCodec

MOST_RATIO = 1.3
NORMAL = 4


async def normal(url: str, pcm: bytes, speed: float, wait: float) -> list[float]:
    """Delays of one stream's words, in seconds of wall time."""
    await asyncio.sleep(wait)
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    async with connect(url, wire.Start(language="en"), reconnect_seconds=0) as stream:
        incoming = aiter(stream)
        await anext(incoming)
        began = loop.time()
        speaking = asyncio.create_task(speak(stream, pcm, speed))
        async for message in incoming:
            if isinstance(message, wire.Commit):
                now = loop.time() - began
                delays += [now - word.end / speed for word in message.words]
        await speaking
    return delays


async def flood(url: str, pcm: bytes) -> None:
    """Send without end, 100 times as fast as it is spoken."""
    with contextlib.suppress(ClientError):
        async with connect(url, wire.Start(language="en"), reconnect_seconds=0) as stream:

            async def send() -> None:
                step = SAMPLE_RATE // 5  # bytes of a tenth of a second
                while True:
                    for at in range(0, len(pcm), step):
                        await stream.send_audio(pcm[at : at + step])
                        await asyncio.sleep(0.001)

            await listen(stream, send())


async def never_read(url: str, pcm: bytes) -> None:
    """Send audio and requests, and leave every answer in the socket."""
    codec = JsonCodec()
    async with raw_connect(url + "/v1/stream", max_queue=1, ping_interval=None, proxy=None) as ws:
        await ws.send(codec.encode(wire.Start(language="en")))
        while True:
            await ws.send(pcm[: SAMPLE_RATE * 2])
            await ws.send(codec.encode(wire.Flush(id="x" * 200)))
            await asyncio.sleep(0.05)


async def four(daemon: Daemon, pcm: bytes, args: Namespace) -> list[float]:
    url = f"ws://127.0.0.1:{daemon.port}"
    # staggered, as callers are
    runs = [normal(url, pcm, args.speed, number * 0.37 / args.speed) for number in range(NORMAL)]
    return [delay for delays in await asyncio.gather(*runs) for delay in delays]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


async def measure(args: Namespace) -> dict[str, object]:
    pcm = speech() * args.repeat
    async with running(args.model, "--max-load", "0", "--drain-seconds", "1") as daemon:
        url = f"ws://127.0.0.1:{daemon.port}"
        alone = await four(daemon, pcm, args)
        rude = [asyncio.create_task(flood(url, pcm)), asyncio.create_task(never_read(url, pcm))]
        await asyncio.sleep(1.0)
        beside = await four(daemon, pcm, args)
        alive = daemon.alive
        for task in rude:
            task.cancel()
        await asyncio.gather(*rude, return_exceptions=True)
    before, after = percentile(alone, 0.95), percentile(beside, 0.95)
    return {
        "benchmark": "fairness",
        "model": args.model,
        "streams": NORMAL,
        "words_alone": len(alone),
        "words_beside": len(beside),
        "p50_alone_seconds": round(percentile(alone, 0.5), 3),
        "p95_alone_seconds": round(before, 3),
        "p50_beside_seconds": round(percentile(beside, 0.5), 3),
        "p95_beside_seconds": round(after, 3),
        "ratio": round(after / before, 3),
        "passed": alive and len(alone) > 0 and after <= MOST_RATIO * before + args.slack,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument(
        "--speed", type=float, default=1.0, help="of the well-behaved, times real time"
    )
    options.add_argument("--repeat", type=int, default=3, help="of the recording of 11 s")
    options.add_argument("--slack", type=float, default=0.0, help="seconds, for very short delays")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
