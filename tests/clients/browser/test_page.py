"""The captions page in Chromium, whose microphone plays a recording of a speech."""

from __future__ import annotations

import json
import re
import threading
import wave
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    Page,
    Playwright,
    expect,
    sync_playwright,
)
from whisper_stream.clients.cli.timeline import Timeline
from whisper_stream.server.http.pages import FILES
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.engine.opening import open_engine

from ...helpers.browser_rig import browser, open_page
from ...helpers.fake_server import WORDS as WORDS_SAID
from ...helpers.relay import relay
from ...helpers.server_rig import Daemon, ScriptedEngine, daemon
from ...helpers.texts import SPEECH, check_times, errors_in, read_srt, read_vtt

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.timeout(120),  # on a fresh machine the first test compiles the kernels
]
RUNNING = "html[data-state=listening]"
STOPPED = "html[data-state=stopped]"
WORDS = "#transcript li p span:first-child"


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def chromium(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    recording = tmp_path_factory.mktemp("microphone") / "speech.wav"
    with wave.open(str(SPEECH)) as speech, wave.open(str(recording), "wb") as padded:
        padded.setparams(speech.getparams())
        silence = bytes(2 * speech.getframerate())  # who presses Start is not speaking yet
        padded.writeframes(silence + speech.readframes(speech.getnframes()) + silence)
    rules = "MAP captions.test 127.0.0.1"
    with browser(playwright, recording, f"--host-resolver-rules={rules}") as opened:
        yield opened


@pytest.fixture(scope="module")
def scripted() -> Iterator[Daemon]:
    with daemon() as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    """The model, for one daemon after the other: none of them closes it."""
    opened = open_engine("tiny.en", device="cpu", threads=2)
    close, opened.close = opened.close, lambda: None  # type: ignore[method-assign]
    yield cast(ScriptedEngine, opened)
    close()


def text_of(page: Page) -> str:
    return " ".join(page.locator(WORDS).all_inner_texts())


def saved(page: Page, kind: str) -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name=kind).click()
    assert re.fullmatch(rf"captions-[\d-]+\.{kind.lower()}", download.value.suggested_filename)
    return Path(download.value.path()).read_text()


def check_subtitles(page: Page) -> None:
    """Read back by independent parsers."""
    cues = read_srt(saved(page, "SRT"))
    assert cues == read_vtt(saved(page, "VTT"))
    check_times(cues)
    assert " ".join(text for *_, text in cues).split() == text_of(page).split()
    assert saved(page, "TXT").split() == text_of(page).split()


def speak(page: Page, until: str) -> None:
    page.get_by_role("button", name="Start").click()
    page.locator("#transcript").get_by_text(re.compile(until, re.IGNORECASE)).wait_for()


def test_a_speech_is_captioned_as_it_was_spoken(chromium: Browser, engine: ScriptedEngine) -> None:
    with daemon(engine) as running, open_page(chromium, running.http) as page:
        speak(page, "ask not")
        assert page.locator("#status").inner_text() == "Listening"
        page.locator("#spoken").get_by_text(re.compile("fellow")).first.wait_for(state="attached")
        page.locator("#transcript").get_by_text(re.compile("for your country")).wait_for()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(STOPPED)
        assert errors_in(text_of(page)).wer == 0.0  # as when it is decoded whole
        assert page.locator(".tail:not(:empty)").count() == 0
        heard = page.locator("#spoken").inner_text().split()
        assert heard == text_of(page).split()
        check_subtitles(page)


def test_a_daemon_killed_in_the_middle_costs_no_word(
    chromium: Browser, engine: ScriptedEngine
) -> None:
    with daemon(engine) as first, daemon(engine) as second, relay(first.port) as between:
        with open_page(chromium, f"http://127.0.0.1:{between.port}") as page:
            speak(page, "fellow")
            between.cut()
            page.wait_for_selector("html[data-state=reconnecting]")
            assert "still recording" in page.locator("#status").inner_text()
            while between.refused < 3:  # more than a second of speech that nobody hears
                page.wait_for_timeout(50)
            between.target = second.port
            page.wait_for_selector(RUNNING)
            page.locator("#transcript").get_by_text(re.compile("for your country")).wait_for()
            page.get_by_role("button", name="Stop").click()
            page.wait_for_selector(STOPPED)
            # It is heard in other pieces than without the restart, so a word may be spelt otherwise.
            errors = errors_in(text_of(page))
            assert errors.deletions == errors.insertions == 0
            assert errors.substitutions <= 1
            check_subtitles(page)


def problem(page: Page) -> str:
    page.locator("#problem").wait_for()
    assert page.locator("#problem").get_attribute("role") == "alert"
    return page.locator("#problem-title").inner_text()


def test_a_refused_microphone(chromium: Browser, scripted: Daemon) -> None:
    with open_page(chromium, scripted.http, microphone=False) as page:
        page.get_by_role("button", name="Start").click()
        assert problem(page) == "The microphone is blocked for this page"
        expect(page.get_by_role("button", name="Start")).to_be_enabled()


def test_no_microphone(playwright: Playwright, scripted: Daemon) -> None:
    with browser(playwright, None) as bare, open_page(bare, scripted.http) as page:
        page.get_by_role("button", name="Start").click()
        assert problem(page) == "No microphone was found"


def test_an_insecure_address(chromium: Browser, scripted: Daemon) -> None:
    url = f"http://captions.test:{scripted.port}"
    with open_page(chromium, url, microphone=False) as page:
        assert problem(page) == "This address may not use the microphone"


def test_a_full_server(chromium: Browser) -> None:
    with daemon(max_streams=1) as running, running.connect() as taken:
        taken.send(wire.Start())
        taken.until(wire.Ready)
        with open_page(chromium, running.http) as page:
            page.get_by_role("button", name="Start").click()
            assert problem(page) == "The server is full"


class Guarded(SimpleHTTPRequestHandler):
    """The page's files, and a daemon that opens no stream without a key."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, directory=str(FILES), **options)

    def do_GET(self) -> None:
        offered = self.headers.get("Sec-WebSocket-Protocol", "")
        if self.path == wire.STREAM_PATH:
            self.send_error(503 if "whisper-stream.key.sesame" in offered else 401)
        elif self.path in ("/page.json", "/healthz"):
            self.send_response(200)
            self.end_headers()
            stopping = "stopping" if self.server.stopping else "ok"  # type: ignore[attr-defined]
            facts = {"model": "m", "languages": [], "version": "1", "status": stopping}
            self.wfile.write(json.dumps(facts).encode())
        else:
            super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_wrong_key_asks_for_another(chromium: Browser) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as guarded:
        guarded.stopping = False  # type: ignore[attr-defined]
        threading.Thread(target=guarded.serve_forever, daemon=True).start()
        with open_page(chromium, f"http://127.0.0.1:{guarded.server_port}") as page:
            page.get_by_role("button", name="Start").click()
            assert problem(page) == "The server wants a valid key"
            page.get_by_role("dialog").get_by_role("textbox").fill("sesame")
            page.get_by_role("button", name="Use this key").click()
            page.get_by_role("button", name="Key of the server").click()
            expect(page.get_by_role("dialog").get_by_role("textbox")).to_have_value("sesame")
            assert page.evaluate("() => localStorage.length") == 0
            page.keyboard.press("Escape")
            guarded.stopping = True  # type: ignore[attr-defined]
            page.get_by_role("button", name="Start").click()
            page.get_by_text("The server is stopping").wait_for()
        guarded.shutdown()


def test_an_unreachable_server(chromium: Browser, scripted: Daemon) -> None:
    with relay(scripted.port) as between:
        with open_page(chromium, f"http://127.0.0.1:{between.port}") as page:
            between.cut()
            page.get_by_role("button", name="Start").click()
            assert problem(page) == "The server does not answer"


def test_choices_stay_and_the_keyboard_works(chromium: Browser, scripted: Daemon) -> None:
    with open_page(chromium, scripted.http) as page:
        page.get_by_role("button", name="Larger text").press("Enter")
        page.get_by_role("button", name="Theme: as the system").press("Enter")
        page.get_by_role("button", name="Theme: light").press("Enter")
        page.get_by_label("Language").select_option("German")
        page.reload()
        assert (
            page.evaluate("() => document.documentElement.style.getPropertyValue('--scale')")
            == "1.25"
        )
        assert page.locator("html").get_attribute("data-theme") == "dark"
        expect(page.get_by_label("Language")).to_have_value("de")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(RUNNING)
        page.locator(WORDS).first.wait_for()
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(STOPPED)
        said = text_of(page)
        page.get_by_role("button", name="Start").click()  # goes on below, later in time
        page.wait_for_selector("#transcript li:nth-child(2)")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(STOPPED)
        assert text_of(page).startswith(said)
        check_subtitles(page)
        page.get_by_role("button", name="Clear").click()
        expect(page.get_by_role("heading", name="Press Start and speak")).to_be_visible()


def test_the_reader_may_look_back(chromium: Browser, scripted: Daemon) -> None:
    with open_page(chromium, f"{scripted.http}/?size=3", size=(320, 420)) as page:
        page.get_by_role("button", name="Start").click()
        reader = page.locator("#reader")
        at_end = "(it) => it.scrollHeight - it.scrollTop - it.clientHeight < 60"
        page.locator("#transcript").get_by_text(re.compile(r"(\w+ ){6}")).wait_for()
        assert reader.evaluate(at_end)
        reader.evaluate("(it) => it.scrollTo(0, 0)")
        page.get_by_role("button", name="Latest words").wait_for()
        shown = text_of(page)
        expect(page.locator(WORDS)).not_to_have_text(shown)
        assert reader.evaluate("(it) => it.scrollTop") == 0
        page.get_by_role("button", name="Latest words").click()
        assert reader.evaluate(at_end)
        page.get_by_role("button", name="Stop").click()


def test_captions_alone(chromium: Browser, scripted: Daemon) -> None:
    with open_page(chromium, f"{scripted.http}/?overlay=1&size=1.25") as page:
        page.wait_for_selector(RUNNING)  # by itself
        page.locator(WORDS).first.wait_for()
        style = "() => getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(style) == "rgba(0, 0, 0, 0)"
        for hidden in ("header", "footer", "#welcome"):
            expect(page.locator(hidden)).to_be_hidden()
    with open_page(chromium, scripted.http) as page:
        page.get_by_role("button", name="Full-screen captions").click()
        expect(page.locator("html")).to_have_attribute("data-view", "screen")
        expect(page.locator("footer")).to_be_hidden()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [(1280, 800), (320, 640)])
def test_no_serious_barrier(
    chromium: Browser, scripted: Daemon, dark: bool, size: tuple[int, int]
) -> None:
    def check() -> None:
        found = Axe().run(page).response["violations"]
        serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert serious == [], found

    with open_page(
        chromium, scripted.http, dark=dark, size=size, microphone=False, bypass_csp=True
    ) as page:
        check()
        width = "() => document.documentElement.scrollWidth - innerWidth"
        assert page.evaluate(width) <= 0
        page.get_by_role("button", name="Start").click()
        problem(page)
        assert page.evaluate(width) <= 0
        check()
        page.context.grant_permissions(["microphone"])
        page.get_by_role("button", name="Start").click()
        page.locator(WORDS).first.wait_for()
        check()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(STOPPED)
        page.get_by_role("button", name="Key of the server").click()
        check()


@pytest.mark.parametrize("dark", [False, True])
def test_a_timeline_opens_without_barriers(chromium: Browser, tmp_path: Path, dark: bool) -> None:
    timeline = Timeline(tmp_path / "talk.html", "talk.wav")
    timeline.add_audio(bytes(64_000))
    timeline.add_message(wire.SpeechStarted(time=0.1))
    timeline.add_message(wire.Commit(text=WORDS_SAID[0].text, words=WORDS_SAID))
    timeline.write()
    context = chromium.new_context(color_scheme="dark" if dark else "light")
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto((tmp_path / "talk.html").as_uri())
    page.get_by_role("button", name="what").click()
    page.get_by_text("“what” was said from 1.20 s to 1.50 s").wait_for()
    page.wait_for_selector("#strip .word[aria-current]")  # it plays
    found = Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    assert told == []
    context.close()
