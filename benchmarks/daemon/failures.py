"""What fails around the daemon: whose stream is told, do the others notice, does the daemon live?

    python benchmarks/daemon/failures.py                          # tiny.en
    python benchmarks/daemon/failures.py --model scripted --speed 0

The disk fills up under the journal; the journal is damaged at the start; the weights are removed while the
daemon runs, and before it starts again; a decode runs out of memory. Beside each, streams that have nothing
to do with it must say, word for word, what they say undisturbed. Prints one JSON object last.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rig import ROOT, Daemon, converse, parser, report, running, speak, speech
from whisper_stream.clients.errors import RemoteError
from whisper_stream.clients.sdk.connection import connect
from whisper_stream.server.protocol import messages as wire

BESIDE = 2  # streams that must not notice
# Loud enough to be told from all other audio: the daemon below runs out of memory where it hears it.
_LOUD = 32_767
_INJECTED = {
    "scripted": (
        "import sys; from collections import deque; import numpy as np; "
        "from tests.helpers.server_rig import ScriptedEngine; from whisper_stream.server.daemon.main import main\n"
        "def spoil(job):\n"
        "    if np.abs(job.audio).max() > 0.9999: raise MemoryError\n"
        "engine = ScriptedEngine(sessions=deque(maxlen=1), spoil=spoil)\n"
        "sys.exit(main(sys.argv[1:], lambda config: engine))"
    ),
    "whisper": (
        "import sys; import torch; from whisper_stream.streamer.engine.cpu_backend import CpuBackend\n"
        "from whisper_stream.server.daemon.main import main\n"
        "decode_one = CpuBackend.decode_one\n"
        "def broken(self, job):\n"
        "    if abs(job.audio).max() > 0.9999:\n"
        "        raise torch.OutOfMemoryError('injected')\n"
        "    return decode_one(self, job)\n"
        "CpuBackend.decode_one = broken\n"
        "sys.exit(main(sys.argv[1:]))"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``told``: how the stream concerned learned of it. ``ready``: what /readyz said meanwhile."""

    told: str
    expected: bool  # it was told what it should be
    others_unharmed: bool
    lives: bool
    ready: str


def asked(daemon: Daemon, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}{path}", timeout=30) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"


async def others(daemon: Daemon, pcm: bytes, args: Namespace) -> list[list[str]]:
    """The words of streams that are in no journal, and hear nothing loud."""
    url = f"ws://127.0.0.1:{daemon.port}"

    async def one() -> list[str]:
        words: list[str] = []
        async with connect(url, wire.Start(language="en"), reconnect_seconds=0) as stream:
            speaking = asyncio.create_task(speak(stream, pcm, args.speed))
            async for message in stream:
                if isinstance(message, wire.Commit):
                    words += [word.text for word in message.words]
            await speaking
        return words

    return await asyncio.gather(*(one() for _ in range(BESIDE)))


async def disk_full(pcm: bytes, args: Namespace, folder: Path) -> Outcome:
    """The journal's file may not grow any more."""
    journal = folder / "journal.db"
    async with running(args.model, "--journal", str(journal), *args.flags) as daemon:
        url = f"ws://127.0.0.1:{daemon.port}"
        expected = await others(daemon, pcm, args)
        before = await converse(url, pcm, args.speed)
        largest = max(size_of(folder, "journal.db*"))
        old = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (largest + 4096, -1))
        beside = asyncio.create_task(others(daemon, pcm, args))
        told = "nothing"
        try:
            await converse(url, pcm * 4, args.speed)
        except RemoteError as error:
            told = f"{error.code}: {error}"
        unharmed = await beside == expected
        ready = await asyncio.to_thread(asked, daemon, "/readyz")
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, old)
        again = await converse(url, pcm, args.speed)
        recovered = (await asyncio.to_thread(asked, daemon, "/readyz")).startswith("200")
        same = [word.text for word in again] == [word.text for word in before]
        return Outcome(
            told=told,
            expected=told.startswith("journal_failed: ") and ready.startswith("503"),
            others_unharmed=unharmed,
            lives=daemon.alive and recovered and same and len(before) > 0,
            ready=ready,
        )


def size_of(folder: Path, pattern: str) -> list[int]:
    return [path.stat().st_size for path in folder.glob(pattern)]


async def damaged_journal(args: Namespace, folder: Path) -> Outcome:
    """The journal's pages hold rubbish when the daemon starts; with another file it does."""
    journal = folder / "damaged.db"
    async with running(args.model, "--journal", str(journal), *args.flags):
        pass
    rubbish = np.random.default_rng(args.seed).bytes(journal.stat().st_size // 2)
    with journal.open("r+b") as file:
        file.seek(100)
        file.write(rubbish)
    code, said = await started(args.model, "--journal", str(journal), *args.flags)
    fine = code == 2 and said.count("\n") == 1 and "--journal" in said and "move it away" in said
    journal.rename(folder / "moved.db")
    async with running(args.model, "--journal", str(journal), *args.flags) as daemon:
        ready = await asyncio.to_thread(asked, daemon, "/readyz")
        lives = daemon.alive
    return Outcome(told=said.strip(), expected=fine, others_unharmed=True, lives=lives, ready=ready)


async def out_of_memory(pcm: bytes, args: Namespace) -> Outcome:
    """One stream's decodes run out of memory while it is loud, and no other's."""
    program = _INJECTED["scripted" if args.model == "scripted" else "whisper"]
    samples = np.frombuffer(pcm, "<i2").copy()
    samples[len(samples) // 2 : len(samples) // 2 + 800] = _LOUD
    loud = samples.tobytes() + bytes(64_000) + pcm
    async with running(args.model, *args.flags, program=program) as daemon:
        url = f"ws://127.0.0.1:{daemon.port}"
        expected = await others(daemon, pcm, args)
        told: set[str] = set()
        texts: list[str] = []
        ended: list[wire.Done] = []

        def note(message: wire.ServerMessage) -> None:
            match message:
                case wire.Gap(reason=reason):
                    told.add(f"gap: {reason}")
                case wire.Warning(code="decode_failed", message=text):
                    told.add(f"warning: {text}")
                case wire.Commit(text=text):
                    texts.append(text)
                case wire.Done():
                    ended.append(message)

        beside = asyncio.create_task(others(daemon, pcm, args))
        await converse(url, loud, args.speed, note)
        unharmed = await beside == expected and len(expected[0]) > 0
        ready = await asyncio.to_thread(asked, daemon, "/readyz")
        goes_on = len(ended) == 1 and len(texts) > 0
        return Outcome(
            told=" | ".join(sorted(told)),
            expected=any(each.startswith("gap: ") for each in told) and goes_on,
            others_unharmed=unharmed,
            lives=daemon.alive and ready.startswith("200"),
            ready=ready,
        )


async def weights_removed(pcm: bytes, args: Namespace, folder: Path) -> Outcome:
    """The model's files vanish: a running daemon has them in memory, one that starts says so."""
    from whisper_stream.model.weights.locate import locate

    (source,) = locate(args.model).paths
    copy = folder / "weights"
    shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    log = folder / "log"
    async with running(str(copy), "--log-level", "info", *args.flags, log=log) as daemon:
        expected = await others(daemon, pcm, args)
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
        unharmed = await others(daemon, pcm, args) == expected and len(expected[0]) > 0
        with contextlib.suppress(AttributeError):  # where there is no SIGHUP
            daemon.send(signal.SIGHUP)
        ready = await asyncio.to_thread(asked, daemon, "/readyz")
        lives = daemon.alive and ready.startswith("200")
    reloaded = await asyncio.to_thread(lambda: "event=reloaded" in log.read_text())
    code, said = await started(str(copy), *args.flags)
    fine = code == 2 and said.count("\n") == 1 and str(copy) in said and reloaded
    return Outcome(
        told=said.strip().replace(str(folder), "…"),
        expected=fine,
        others_unharmed=unharmed,
        lives=lives,
        ready=ready,
    )


async def started(model: str, *flags: str) -> tuple[int, str]:
    """Start a daemon that should not -> its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *Daemon(model, *flags).command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    async with asyncio.timeout(120):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def measure(args: Namespace) -> dict[str, object]:
    pcm = speech()
    # Commits at the ends of utterances only: what is said does not depend on the machine's pace.
    args.flags = ["--max-load", "0", "--drain-seconds", "1", "--update-interval", "30"]
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcomes["disk_full"] = await disk_full(pcm, args, folder)
        outcomes["damaged_journal"] = await damaged_journal(args, folder)
        outcomes["out_of_memory"] = await out_of_memory(pcm, args)
        if args.model != "scripted":
            outcomes["weights_removed"] = await weights_removed(pcm, args, folder)
    return {
        "benchmark": "failures",
        "model": args.model,
        **{name: asdict(outcome) for name, outcome in outcomes.items()},
        "passed": all(o.expected and o.others_unharmed and o.lives for o in outcomes.values()),
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--speed", type=float, default=1.0, help="times real time; 0: at once")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
