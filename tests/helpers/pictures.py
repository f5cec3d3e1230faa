"""Makes the pictures of the captions page and of terminals in docs/images: ``python -m tests.pictures``."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import tempfile
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.engine.opening import open_engine

from ..clients.browser.test_page import Guarded
from .audio_rig import room
from .browser_rig import browser, open_page
from .relay import relay
from .server_rig import Daemon, ScriptedEngine, daemon

DATA = Path(__file__).parents[1] / "data"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
STAGE = "html { background: linear-gradient(160deg, #24415e, #7a5c58 60%, #c9a56b) !important }"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        recording = Path(folder) / "speech.wav"
        _record(recording)
        engine = open_engine("tiny.en", device="cpu")
        close, engine.close = engine.close, lambda: None  # type: ignore[method-assign]
        with daemon(cast(ScriptedEngine, engine), debug=True) as running:
            _live_timeline(playwright, recording, running)
            _captions(playwright, recording, running)
            for columns, rows in ((80, 24), (40, 10)):
                _terminal(playwright, running, Path(folder), columns, rows)
        said = itertools.cycle([" And", " so,", " my", " fellow", " Americans,"])
        with daemon(ScriptedEngine(word_text=lambda job: next(said))) as running:
            _problems(playwright, recording, running)
        close()
    return 0


def _record(path: Path) -> None:
    with wave.open(str(DATA / "en-speech-jfk.wav")) as speech, wave.open(str(path), "wb") as out:
        out.setparams(speech.getparams())
        out.writeframes(bytes(32_000) + speech.readframes(speech.getnframes()) + bytes(32_000))


def _live_timeline(playwright: Playwright, recording: Path, running: Daemon) -> None:
    """The daemon's debug page in the middle of a speech."""
    with browser(playwright, None) as opened, running.connect() as peer:
        context = opened.new_context(viewport={"width": 1280, "height": 520})
        page = context.new_page()
        page.goto(f"{running.http}/debug")
        with wave.open(str(recording)) as speech:
            rate, channels = speech.getframerate(), speech.getnchannels()
            pcm = speech.readframes(speech.getnframes())
        peer.send(wire.Start(language="en", sample_rate=rate, channels=channels))
        threading.Thread(target=peer.rest).start()  # who does not read is not served
        second = 2 * rate * channels
        for at in range(0, len(pcm), second // 4):
            peer.audio(pcm[at : at + second // 4])
            time.sleep(0.25)
            if page.locator("#strip .word.tail").count() and at > 9 * second:
                break
        page.screenshot(path=IMAGES / "debug.png")
        context.close()
        peer.socket.close()


def _captions(playwright: Playwright, recording: Path, running: Daemon) -> None:
    def take(name: str, address: str, **options: Any) -> None:
        with _listening(playwright, recording, running, address, **options) as page:
            page.screenshot(path=IMAGES / f"page-{name}.png")

    take("light", "/")
    take("dark", "/", dark=True)
    take("phone", "/", size=(390, 720), scale=2)
    take("overlay", "/?overlay=1", size=(1280, 720), style=STAGE)
    take("screen", "/", size=(1280, 720), act=lambda page: page.click("#fullscreen"))


@contextmanager
def _listening(
    playwright: Playwright,
    recording: Path,
    running: Daemon,
    address: str,
    *,
    act: Callable[[Page], None] = lambda page: None,
    style: str | None = None,
    **options: Any,
) -> Iterator[Page]:
    """A page in the middle of a speech, with words that may still change."""
    with browser(playwright, recording) as opened:
        url = running.http + address
        with open_page(opened, url, bypass_csp=True, **options) as page:
            if style:
                page.add_style_tag(content=style)
            if "overlay" not in address:
                page.click("#start")
            act(page)
            page.locator("#transcript").get_by_text(re.compile("what you can")).wait_for()
            page.wait_for_selector("#transcript .tail:not(:empty)")
            yield page


def _terminal(
    playwright: Playwright, running: Daemon, folder: Path, columns: int, rows: int
) -> None:
    """``whisper-stream mic`` in a terminal of this size, in the middle of a speech."""
    home = folder / f"terminal-{columns}"
    home.mkdir()
    with room(home) as sound:
        tmux = ["tmux", "-S", str(home / "tmux")]
        mic = f"{sys.executable} -m whisper_stream.clients mic --server {running.url}"
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run([*tmux, "new-session", "-d", *size, mic], env=sound.environment, check=True)
        capture = [*tmux, "capture-pane", "-e", "-p"]
        screen = _captured(capture, "Ctrl-C")
        playing = threading.Thread(target=sound.play, args=(DATA / "en-speech-jfk.wav",))
        playing.start()
        screen = _captured(capture, "what you can")
        playing.join()
        subprocess.run([*tmux, "kill-server"], check=True)
    _photograph(playwright, screen, columns, IMAGES / f"terminal-{columns}x{rows}.png")


def _captured(capture: list[str], awaited: str) -> str:
    while True:
        screen = subprocess.run(capture, capture_output=True, text=True, check=True).stdout
        if awaited in screen:
            return screen
        time.sleep(0.05)


def _photograph(playwright: Playwright, screen: str, columns: int, target: Path) -> None:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen))
    style = "background: #191919; padding: 14px 16px; display: inline-block; color: #e6e6e6"
    page = console.export_html(
        inline_styles=True,
        theme=DIMMED_MONOKAI,
        code_format=f'<pre style="{style}; margin: 0; font: 15px/1.3 DejaVu Sans Mono">{{code}}</pre>',
    )
    with browser(playwright, None) as opened:
        view = opened.new_page(device_scale_factor=2)
        view.set_content(page)
        view.locator("pre").screenshot(path=target)


def _problems(playwright: Playwright, recording: Path, running: Daemon) -> None:
    rules = "--host-resolver-rules=MAP captions.test 127.0.0.1"
    with browser(playwright, recording, rules) as opened:
        _problem(opened, "denied", running.http, microphone=False)
        insecure = f"http://captions.test:{running.port}"
        _problem(opened, "insecure", insecure, press=False, microphone=False)
        with relay(running.port) as between:
            url = f"http://127.0.0.1:{between.port}"
            _problem(opened, "unreachable", url, before=lambda page: between.cut())
            _problem_while_listening(opened, "reconnecting", url, between.cut, running.port)
        _guarded(opened)
        with daemon(max_streams=1) as full, full.connect() as taken:
            taken.send(wire.Start())
            taken.until(wire.Ready)
            _problem(opened, "full", full.http)
    with browser(playwright, None) as bare:
        _problem(bare, "no-device", running.http)


def _problem(
    opened: Browser,
    name: str,
    url: str,
    *,
    press: bool = True,
    before: Callable[[Page], None] = lambda page: None,
    microphone: bool = True,
) -> None:
    with open_page(opened, url, size=(960, 460), microphone=microphone) as page:
        before(page)
        if press:
            page.click("#start")
        page.locator("#problem").wait_for()
        page.screenshot(path=IMAGES / f"error-{name}.png")


def _problem_while_listening(
    opened: Browser, name: str, url: str, cut: Callable[[int | None], None], port: int
) -> None:
    cut(port)
    with open_page(opened, url, size=(960, 460)) as page:
        page.click("#start")
        page.wait_for_selector("#transcript .tail", state="attached")
        cut(None)
        page.wait_for_selector("html[data-state=reconnecting]")
        page.screenshot(path=IMAGES / f"error-{name}.png")


def _guarded(opened: Browser) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as guarded:
        guarded.stopping = False  # type: ignore[attr-defined]
        threading.Thread(target=guarded.serve_forever, daemon=True).start()
        _problem(opened, "key", f"http://127.0.0.1:{guarded.server_port}")
        guarded.shutdown()


if __name__ == "__main__":
    sys.exit(main())
