"""Streams come, one after another, until the daemon takes no more: do those it took keep their delay?

    python benchmarks/daemon/overload.py                          # tiny.en, at the pace of speech
    python benchmarks/daemon/overload.py --model scripted --max-streams 3 --every 0.2 --hold 2

Every stream speaks until the end. After the first refusal more try their luck while the accepted ones are
held for a while under full load: the delays of that time are judged, from when the end of a word was
sent to when its commit came, against the daemon's own ``--max-delay``. A refusal must come within a second,
from dialling to the close, and give its reason. Prints one JSON object last.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field

from fairness import percentile
from rig import SAMPLE_RATE, parser, report, running, speech
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import JsonCodec

MOST_REFUSAL_SECONDS = 1.0
_CODEC = JsonCodec()


@dataclass
class Tally:
    """What has come of all attempts so far."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by status and reason
    refusal_seconds: list[float] = field(default_factory=list)
    unexplained: int = 0  # ended without a reason
    lost: int = 0  # accepted, and ended all the same
    gaps: int = 0
    lag: float = 0.0  # the worst that was told
    words: list[tuple[float, float]] = field(default_factory=list)  # when it came, and its delay

    def refuse(self, why: str, seconds: float) -> None:
        self.refused[why] += 1
        self.refusal_seconds.append(seconds)


async def stream(url: str, pcm: bytes, speed: float, tally: Tally) -> None:
    """One attempt; an accepted stream speaks until it is cancelled."""
    loop = asyncio.get_running_loop()
    dialled = loop.time()
    try:
        async with raw_connect(url, ping_interval=None, compression=None, proxy=None) as ws:
            await ws.send(_CODEC.encode(wire.Start(language="en")))
            first = _CODEC.decode_server(await ws.recv())
            if isinstance(first, wire.Ready):
                tally.accepted += 1
                await asyncio.gather(_speak(ws, pcm, speed), _listen(ws, loop.time(), speed, tally))
            with contextlib.suppress(ConnectionClosed):
                await ws.recv()
            seconds = loop.time() - dialled
            if isinstance(first, wire.Error) and first.message and ws.close_code == 1013:
                tally.refuse(f"1013 {first.code}", seconds)
            else:
                tally.unexplained += 1
    except InvalidStatus as error:
        response = error.response
        tally.refuse(f"HTTP {response.status_code}", loop.time() - dialled)
        tally.unexplained += not response.body
    except (ConnectionClosed, OSError):
        tally.lost += 1


async def _speak(ws: ClientConnection, pcm: bytes, speed: float) -> None:
    loop = asyncio.get_running_loop()
    began, sent, step = loop.time(), 0, SAMPLE_RATE // 10 * 2
    while True:
        for at in range(0, len(pcm) - step + 1, step):
            await ws.send(pcm[at : at + step])
            sent += step
            due = began + sent / 2 / SAMPLE_RATE / speed
            await asyncio.sleep(max(0.0, due - loop.time()))


async def _listen(ws: ClientConnection, began: float, speed: float, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    while True:
        match _CODEC.decode_server(await ws.recv()):
            case wire.Commit(words=words):
                now = loop.time()
                tally.words += [(now, now - began - word.end / speed) for word in words]
            case wire.Gap():
                tally.gaps += 1
            case wire.Lag(behind=behind):
                tally.lag = max(tally.lag, behind)


async def ramp(url: str, pcm: bytes, args: Namespace, tally: Tally) -> float:
    """Send streams until the last attempt is made; return when the first one was refused."""
    loop = asyncio.get_running_loop()
    full = 0.0
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        while len(tasks) < args.most and not (full and loop.time() >= full + args.hold):
            # each begins elsewhere in the recording: they do not run in step
            turn = SAMPLE_RATE * 2 * (3 * len(tasks) % max(1, len(pcm) // SAMPLE_RATE // 2))
            turned = pcm[turn:] + pcm[:turn]
            tasks.append(group.create_task(stream(url, turned, args.speed, tally)))
            await asyncio.sleep(args.every)
            if tally.refused and not full:
                full = loop.time()
        for task in tasks:
            task.cancel()
    return full


async def measure(args: Namespace) -> dict[str, object]:
    pcm = speech() * args.repeat
    bound = args.bound or ServerConfig().max_delay
    flags = ["--drain-seconds", "1", "--max-delay", str(bound)]
    if args.max_streams:
        flags += ["--max-streams", str(args.max_streams)]
    tally = Tally()
    async with running(args.model, *flags) as daemon:
        url = f"ws://127.0.0.1:{daemon.port}{wire.STREAM_PATH}"
        full = await ramp(url, pcm, args, tally)
        alive = daemon.alive
    delays = [delay for when, delay in tally.words if full and when >= full]
    slowest = max(tally.refusal_seconds, default=0.0)
    late = percentile(delays, 0.95) if delays else float("inf")
    kept = late <= bound and tally.lost == tally.gaps == tally.unexplained == 0
    return {
        "benchmark": "overload",
        "model": args.model,
        "accepted": tally.accepted,
        "refused": sum(tally.refused.values()),
        "reasons": dict(tally.refused),
        "refusal_seconds_max": round(slowest, 3),
        "words_judged": len(delays),
        "p50_accepted_seconds": round(percentile(delays, 0.5), 3) if delays else None,
        "p95_accepted_seconds": round(late, 3) if delays else None,
        "bound_seconds": bound,
        "lag_max_seconds": round(tally.lag, 3),
        "lost": tally.lost,
        "gaps": tally.gaps,
        "unexplained": tally.unexplained,
        "passed": alive and full > 0 and kept and slowest <= MOST_REFUSAL_SECONDS,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--every", type=float, default=3.0, help="seconds from stream to stream")
    options.add_argument("--hold", type=float, default=30.0, help="seconds under full load")
    options.add_argument("--most", type=int, default=80, help="attempts at most")
    options.add_argument("--max-streams", type=int, default=0, help="the daemon's; 0: its default")
    options.add_argument("--bound", type=float, default=0.0, help="--max-delay; 0: the default")
    options.add_argument("--speed", type=float, default=1.0, help="times real time")
    options.add_argument("--repeat", type=int, default=1, help="of the recording of 11 s")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
