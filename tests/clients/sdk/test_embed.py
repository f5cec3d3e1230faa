"""The embedded daemon's start and end, with a stand-in for the daemon."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from whisper_stream.clients.errors import DaemonError
from whisper_stream.clients.sdk.embed import DaemonOptions, daemon

ANNOUNCE = """\
import json, os, sys
print("a line that is no announcement", flush=True)
sys.stderr.write("noise " * 100_000 + "\\n")
print(json.dumps({"url": f"ws://127.0.0.1:{os.getpid()}", "argv": sys.argv[1:]}), flush=True)
print("more noise " * 100_000, flush=True)
"""


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def started(program: str, **limits: float) -> tuple[int, int]:
    """Run a stand-in until it announced itself; its pid and session while it ran."""

    async def run() -> tuple[int, int]:
        async with daemon(DaemonOptions(), command(program), **limits) as url:
            pid = int(url.rpartition(":")[2])
            return pid, os.getsid(pid)

    return asyncio.run(run())


def test_arguments_leave_what_is_not_given_to_the_daemon() -> None:
    fixed = ["--host", "127.0.0.1", "--port", "0", "--announce", "--exit-with-stdin"]
    assert DaemonOptions().arguments() == [*fixed, "--model", "tiny.en"]
    options = DaemonOptions(model="base", device="cpu", compute_type="float32", threads=2)
    options = replace(options, policy="either")
    assert options.arguments() == [
        *(*fixed, "--model", "base", "--device", "cpu"),
        *("--compute-type", "float32", "--threads", "2", "--policy", "either"),
    ]


def test_it_ends_when_its_stdin_closes() -> None:
    pid, session = started(ANNOUNCE + "sys.stdin.read()")
    assert session == pid  # not ours: Ctrl-C does not reach it
    assert not alive(pid)


def test_it_is_made_to_end() -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program = f"{stubborn}{ANNOUNCE}\nwhile True: signal.pause()"
    pid, _ = started(program, stop_seconds=0.05)
    assert not alive(pid)


def test_a_daemon_that_never_listens_is_given_up() -> None:
    with pytest.raises(DaemonError, match=r"was not ready within 0\.05 s; start again") as caught:
        started("import signal\nsignal.pause()", start_seconds=0.05)
    assert caught.value.exit_code == 1


def test_it_ends_when_the_start_is_given_up(tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    program = f"import os, signal\nopen({str(fifo)!r}, 'w').write(str(os.getpid()))\nsignal.pause()"

    async def start() -> None:
        async with daemon(DaemonOptions(), command(program)):
            pass

    async def run() -> int:
        starting = asyncio.create_task(start())
        pid = int(await asyncio.to_thread(fifo.read_text))
        assert alive(pid)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return pid

    assert not alive(asyncio.run(run()))


@pytest.mark.parametrize(
    ("program", "text", "code"),
    [
        (
            "import sys; sys.stderr.write('log\\nwhisper-stream: error: no model x\\n'); sys.exit(2)",
            "no model x",
            2,
        ),
        (
            "import sys; sys.stderr.write('Killed by the sun\\n\\n'); sys.exit(3)",
            "the embedded daemon ended with code 3 before it was ready: Killed by the sun",
            1,
        ),
        (
            "",
            "the embedded daemon ended with code 0 before it was ready: it gave no reason",
            1,
        ),
    ],
)
def test_why_it_did_not_start_is_one_line(program: str, text: str, code: int) -> None:
    with pytest.raises(DaemonError) as caught:
        started(program)
    assert str(caught.value) == text
    assert caught.value.exit_code == code
