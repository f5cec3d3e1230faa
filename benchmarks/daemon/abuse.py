"""Those who are not welcome: slow, huge, without a key, with another's session. All are refused and counted.

    python benchmarks/daemon/abuse.py                             # 1000 wrong keys, 200 slow connections
    python benchmarks/daemon/abuse.py --wrong 200 --slow 20 --patience 0.5

A daemon with keys meets them one kind after another, and a healthy stream speaks beside them, again and
again. Prints one JSON object last: of each kind how many were tried, how many were refused as they must be,
and how many the daemon counted in ``/metrics``; what its memory, descriptors and log have grown by; and
whether any secret is in the log.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from attacks import EXPIRED, KEY, Abuse
from rig import SAMPLE_RATE, converse, parser, report, running

MOST_MEMORY = 24 * 1024 * 1024  # bytes grown
MOST_LINES = 60  # logged
AT_ONCE = 40


async def many(count: int, one: Callable[[], Awaitable[bool]]) -> int:
    """How many of ``count`` were refused as they must be."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded() -> bool:
        async with gate:
            return await one()

    return sum(await asyncio.gather(*(guarded() for _ in range(count))))


def used(pid: int) -> tuple[int, int]:
    """Resident bytes and open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def attack(abuse: Abuse, args: Namespace) -> dict[str, dict[str, object]]:
    """Every kind, once -> tried, refused, and what the daemon has counted of it."""
    session, token = await abuse.session()
    kinds: dict[str, tuple[int, Callable[[], Awaitable[bool]], str]] = {
        "slow_header": (args.slow, abuse.slow_header, "slow_request"),
        "slow_second_header": (args.slow, abuse.slow_second_header, "slow_request"),
        "slow_start": (args.slow, abuse.slow_start, "idle_timeout"),
        "no_start": (args.slow, abuse.no_start, "idle_timeout"),
        "huge_header": (args.slow, abuse.huge_header, "bad_request"),
        "no_http": (args.slow, abuse.no_http, "bad_request"),
        "wrong_key": (args.wrong, abuse.wrong_key, "key"),
        "expired_key": (args.slow, abuse.expired_key, "key"),
        "wrong_token": (args.slow, lambda: abuse.wrong_token(session, KEY), "session"),
        "expired_token": (1, lambda: abuse.wrong_token(session, token), "session"),
    }
    figures: dict[str, dict[str, object]] = {}
    for name, (count, one, reason) in kinds.items():
        if (
            name == "expired_token"
        ):  # nobody has resumed it: it is over, and its transcript forgotten
            await asyncio.sleep(3.0)
        before, memory = abuse.counted(), used(abuse.pid)[0]
        began = time.monotonic()
        refused = await many(count, one)
        seconds = time.monotonic() - began
        grown = abuse.counted().get(reason, 0) - before.get(reason, 0)
        figures[name] = {"tried": count, "refused": refused, "counted": grown}
        figures[name]["seconds"] = round(seconds, 2)
        figures[name]["memory_kib"] = (used(abuse.pid)[0] - memory) // 1024
    return figures


async def beside(url: str, pcm: bytes, done: asyncio.Event) -> tuple[int, bool]:
    """Healthy streams, one after another -> how many, and whether all said the same."""
    expected, count, same = await converse(url, pcm, 0), 0, True
    while not done.is_set():
        same = same and await converse(url, pcm, 0) == expected
        count += 1
        await asyncio.sleep(0.05)
    return count, same and len(expected) > 0


def measure(args: Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        keys, log = Path(folder, "keys"), Path(folder, "log")
        keys.write_text(f"anna:{KEY}\nold:{EXPIRED} expires=2020-01-01\n")
        flags = ["--api-keys", str(keys), "--handshake-timeout", str(args.patience)]
        flags += ["--resume-seconds", "2", "--retain-seconds", "0.5", "--log-level", "info"]
        figures = asyncio.run(meet(args, flags, log))
        logged = log.read_text()
    lines = [line for line in logged.splitlines() if "stream=" not in line or "stream=-" in line]
    secrets = any(secret in logged for secret in (KEY[:-1], EXPIRED, "Traceback"))
    figures |= {"log_lines": len(lines), "secrets_or_tracebacks_logged": secrets}
    figures["passed"] = bool(figures["passed"]) and not secrets and len(lines) <= MOST_LINES
    return figures


async def meet(args: Namespace, flags: list[str], log: Path) -> dict[str, object]:
    noise = np.random.default_rng(1).integers(-9_000, 9_000, SAMPLE_RATE * 4)
    pcm = noise.astype("<i2").tobytes()
    async with running("scripted", "--max-load", "0", *flags, log=log) as daemon:
        abuse, done = Abuse(daemon, args), asyncio.Event()
        await many(100, abuse.wrong_key)  # what is imported and allocated once is there now
        url = f"ws://127.0.0.1:{daemon.port}?key={KEY}"
        await converse(url, pcm, 0)
        memory, descriptors = used(daemon.pid)
        healthy = asyncio.create_task(beside(url, pcm, done))
        figures = await attack(abuse, args)
        done.set()
        streams, same = await healthy
        await asyncio.sleep(0.5)
        more_memory, more_descriptors = used(daemon.pid)
        alive = daemon.alive
    refused = all(f["tried"] == f["refused"] for f in figures.values())
    counted = all(int(str(f["counted"])) >= int(str(f["tried"])) for f in figures.values())
    grown = more_memory - memory
    held = grown < MOST_MEMORY and more_descriptors <= descriptors
    return {
        "benchmark": "abuse",
        **figures,
        "memory_grown_bytes": grown,
        "descriptors_grown": more_descriptors - descriptors,
        "healthy_streams": streams,
        "healthy_streams_unchanged": same,
        "passed": alive and same and refused and counted and held,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--wrong", type=int, default=1000, help="wrong keys")
    options.add_argument("--slow", type=int, default=200, help="connections of every other kind")
    options.add_argument("--patience", type=float, default=10.0, help="--handshake-timeout")
    return report(measure(options.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
