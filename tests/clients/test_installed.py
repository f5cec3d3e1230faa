"""An installation of the clients alone: what works there, and the one sentence of what does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from whisper_stream.clients.installed import ENGINE_MODULES

from ..helpers.server_rig import daemon

SPEECH = Path(__file__).parents[1] / "data" / "en-speech-jfk.wav"
PIP = "pip install 'whisper-stream[server]'"

# Refuses every module that only the extra ``server`` brings, as if it were not installed.
THIN = f"""
import sys
from importlib.abc import MetaPathFinder
class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*ENGINE_MODULES, "triton")!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None
sys.meta_path.insert(0, Refuse())
"""


def thin(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process that has no engine."""
    command = [sys.executable, "-c", THIN + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in such a process."""
    run = "from whisper_stream.clients.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return thin(run, *arguments)


def test_the_sdk_transcribes_with_a_daemon_elsewhere() -> None:
    use = "from whisper_stream.clients import sync\n"
    use += "print(len(sync.transcribe_file(sys.argv[1], sys.argv[2]).words))"
    with daemon() as running:
        done = thin(use, str(SPEECH), f"ws://127.0.0.1:{running.port}")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 22  # the scripted engine says one word for every half second


def test_the_player_captions_with_a_daemon_elsewhere() -> None:
    with daemon() as running:
        address = f"ws://127.0.0.1:{running.port}"
        done = command(str(SPEECH), "--server", address, "--speed", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", ["serve", "transcribe", "bench", "models", "doctor"])
def test_commands_that_need_the_engine_name_the_package(name: str) -> None:
    done = command(name)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"whisper-stream: error: `whisper-stream {name}` needs the engine"
    )
    assert done.stderr.endswith(f"{PIP}\n") and done.stderr.count("\n") == 1


def test_without_a_daemon_the_player_says_what_would_help() -> None:
    done = command(str(SPEECH))
    assert done.returncode == 1
    assert "name a running daemon with --server, or pip install" in done.stderr
    assert done.stderr.count("\n") == 1
