"""The documentation: it builds without a warning, and every command in it runs."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from whisper_stream.server.daemon.tls import make_certificate

from ..clients.sources.test_pipes import Quiet
from ..helpers.audio_rig import Room, room
from ..helpers.server_rig import Daemon, ScriptedEngine, daemon
from ..helpers.texts import DATA

ROOT = Path(__file__).parents[2]
PAGES = sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "benchmarks.md"})
# They change the machine, and are what CI itself begins with.
INSTALLS = ("python3 -m venv", ".venv/bin/pip install", ". .venv/bin/activate", "sudo apt install")
SHORT = DATA / "en-read-7902-cutter.flac"  # 2 s


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every fenced block of a language."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text())]


COMMANDS = sorted(
    {
        line[2:].partition("  #")[0].strip()
        for _, text in blocks("console")
        for line in text.splitlines()
        if line.startswith("$ ")
    }
    - {""}
)
RUN = [command for command in COMMANDS if not command.startswith(INSTALLS)]
MICROPHONE = [each for each in RUN if " mic" in each and "--list-devices" not in each]
SERVE = [each for each in RUN if " serve" in each and "--help" not in each]
DIRECT = [each for each in RUN if each not in MICROPHONE and each not in SERVE]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with room(tmp_path_factory.mktemp("sound")) as started:
        yield started


@pytest.fixture
def running() -> Iterator[Daemon]:
    with daemon(ScriptedEngine(word_text=lambda job: " hello")) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the commands play."""
    convert = ["ffmpeg", "-v", "error", "-i", str(SHORT)]
    for name in ("talk.wav", "film.mkv"):
        subprocess.run([*convert, str(tmp_path / name)], check=True)
    (tmp_path / "talk.raw").write_bytes(bytes(32_000))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as cleanup:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        shutil.copy(make_certificate("192.168.1.20", cleanup)[0], tmp_path / "cert.pem")
    return tmp_path


def environment(sound: Room) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**sound.environment, "PATH": path}


def placed(command: str, running: Daemon) -> str:
    """The command with the daemon's real address; one that would start a daemon uses it too."""
    placed = command.replace("ws://127.0.0.1:9090", running.url)
    placed = placed.replace("wss://192.168.1.20:9090", running.url)  # TLS itself: test_security.py
    starts = re.search(r"whisper-stream (?!serve|bench|models|transcribe)", placed)
    if starts and "--server" not in placed and "--list-devices" not in placed:
        placed += f" --server {running.url}"
    return placed


def shell(command: str, folder: Path, sound: Room) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment(sound),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.needs("ffmpeg", "openssl", "pulseaudio", "portaudio")
@pytest.mark.parametrize("command", DIRECT)
def test_a_command_runs(command: str, folder: Path, running: Daemon, sound: Room) -> None:
    serve = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{web.server_port}"
        done = shell(placed(command, running).replace("https://example.org", here), folder, sound)
        web.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.needs("ffmpeg", "pulseaudio", "portaudio")
@pytest.mark.parametrize("command", MICROPHONE)
def test_a_microphone_command_runs(
    command: str, folder: Path, running: Daemon, sound: Room
) -> None:
    """Until Ctrl-C, once it hears something."""
    arguments = placed(command, running).split() + ([] if "--json" in command else ["--json"])
    with subprocess.Popen(
        arguments, cwd=folder, env=environment(sound), stdout=subprocess.PIPE, text=True
    ) as mic:
        assert mic.stdout is not None
        next(line for line in mic.stdout if '"commit"' in line)
        mic.send_signal(signal.SIGINT)
        assert '"done"' in list(mic.stdout)[-1]
    assert mic.returncode == 0


@pytest.mark.needs("ffmpeg", "pulseaudio")
@pytest.mark.parametrize("command", SERVE)
def test_a_daemon_runs(command: str, folder: Path, sound: Room) -> None:
    arguments = command.replace("--port 9090", "").split() + ["--port", "0", "--announce"]
    variables = environment(sound)
    if "--self-signed" in command:
        variables["XDG_CACHE_HOME"] = str(folder / "cache")
    with subprocess.Popen(
        arguments, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdout is not None
        told = serving.stdout.readline().strip()
        url = re.sub(r".*ws(s?)://([^/]+)/.*", r"http\1://\2/healthz", told)
        # The certificate is that of security.md, whose trust test_security.py has.
        context = ssl._create_unverified_context() if url.startswith("https") else None
        with urllib.request.urlopen(url, context=context) as answer:
            assert b'"ok"' in answer.read()
        serving.send_signal(signal.SIGTERM)
    assert serving.returncode == 0


# tests/test_docs.py has those of api.md, with what they print.
@pytest.mark.needs("ffmpeg")
@pytest.mark.parametrize("code", [text for page, text in blocks("python") if page != "api.md"])
def test_an_example_in_python_runs(code: str, folder: Path, running: Daemon) -> None:
    code = code.replace("ws://127.0.0.1:9090", running.url)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout


@pytest.mark.needs("ffmpeg", "node")
@pytest.mark.parametrize("code", [text for _, text in blocks("js")])
def test_an_example_in_javascript_runs(code: str, folder: Path, running: Daemon) -> None:
    shutil.copy(ROOT / "clients" / "browser" / "whisper-stream.js", folder)
    code = "const pcm = new Int16Array(16000);\n" + code
    (folder / "example.mjs").write_text(code.replace("ws://127.0.0.1:9090", running.url))
    done = subprocess.run(["node", "example.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(site)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        folder = site if page.stem == "index" else site / page.stem
        assert (folder / "index.html").exists()
    text = (site / "index.html").read_text()
    assert "fonts.googleapis.com" not in text
