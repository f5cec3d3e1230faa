"""Streams disturbed at random moments must end as undisturbed ones: word for word, times within 20 ms.

    python benchmarks/daemon/kill_resume.py                        # 30 cut connections, 30 times kill -9
    python benchmarks/daemon/kill_resume.py --model scripted --moments 3 --speed 8

Each run streams one recording; at one moment the TCP connection is cut, or the daemon is killed and
started again. Prints a line a run and, last, one JSON object.

Updates come at the daemon's usual pace, and are the same however late the audio came, as long as the
engine keeps up.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from rig import SAMPLE_RATE, SPEECH, Cable, converse, parser, report, running, speech
from whisper_stream.server.protocol import messages as wire

TOLERANCE = 0.020 + 1e-6  # seconds; times are rounded to milliseconds


def difference(words: list[wire.Word], expected: list[wire.Word]) -> tuple[bool, float]:
    """Whether the texts are the same, and by how many seconds the times differ at most."""
    same = [word.text for word in words] == [word.text for word in expected]
    if not same:
        return False, float("inf")
    pairs = zip(words, expected, strict=True)
    gaps = (max(abs(a.start - b.start), abs(a.end - b.end)) for a, b in pairs)
    return True, max(gaps, default=0.0)


async def measure(args: Namespace) -> dict[str, object]:
    pcm = speech(args.audio)
    chance = random.Random(args.seed)
    seconds = len(pcm) / 2 / SAMPLE_RATE
    good, late, recoveries = 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        journal = ["--journal", str(Path(folder) / "journal.db"), "--resume-seconds", "300"]
        async with running(args.model, *journal) as daemon:
            cable = Cable(daemon.port)
            await cable.open()
            expected = await converse(cable.url, pcm, args.speed)
            loop = asyncio.get_running_loop()

            async def disturb(kind: str, after: float) -> None:
                await asyncio.sleep(after / (args.speed or 50))
                if kind == "cut":
                    cable.cut()
                    return
                began = loop.time()
                await daemon.end(signal.SIGKILL)
                await daemon.start()
                recoveries.append(loop.time() - began)

            kinds = [kind for kind in ("cut", "kill") for _ in range(args.moments)]
            for number, kind in enumerate(kinds, start=1):
                after = chance.uniform(0.05, seconds)
                breaking = asyncio.create_task(disturb(kind, after))
                words = await converse(cable.url, pcm, args.speed)
                await breaking
                same, apart = difference(words, expected)
                fine = same and apart <= TOLERANCE
                good += fine
                late.append(apart)
                verdict = "same" if fine else ("times" if same else "WORDS")
                print(
                    f"{number:>3} {kind:<4} at {after:6.2f} s  {verdict} {apart:.3f} s", flush=True
                )
            await cable.close()
    return {
        "benchmark": "kill_resume",
        "model": args.model,
        "seconds": round(seconds, 2),
        "speed": args.speed,
        "runs": len(kinds),
        "equal": good,
        "words": len(expected),
        "most_apart_seconds": round(max(late), 4) if max(late) < 1e9 else None,
        "restart_seconds": round(statistics.median(recoveries), 2) if recoveries else None,
        "passed": good == len(kinds) and len(expected) > 0,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--audio", type=Path, default=SPEECH)
    options.add_argument("--moments", type=int, default=30, help="of each kind")
    options.add_argument("--speed", type=float, default=1.0, help="times real time; 0: at once")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
