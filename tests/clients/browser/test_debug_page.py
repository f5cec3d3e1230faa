"""The daemon's ``/debug`` page in Chromium: words appear as they come, under a strict policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from whisper_stream.server.protocol import messages as wire

from ...helpers.browser_rig import browser
from ...helpers.server_rig import Daemon, ScriptedEngine, daemon, speech

pytestmark = pytest.mark.needs("chromium")
KEY = "k" * 16


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright, browser(playwright, None) as opened:
        yield opened


@pytest.fixture
def told() -> list[str]:
    return []


def opened(
    chromium: Browser, running: Daemon, told: list[str], *, dark: bool, at: str = ""
) -> Page:
    scheme = "dark" if dark else "light"
    page = chromium.new_context(color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto(f"{running.http}/debug{at}")
    return page


@pytest.mark.parametrize("dark", [False, True])
def test_a_stream_is_drawn_as_it_runs(chromium: Browser, told: list[str], dark: bool) -> None:
    engine = ScriptedEngine(word_text=lambda job: " word")
    with daemon(engine, debug=True) as running, running.connect() as peer:
        page = opened(chromium, running, told, dark=dark)
        expect(page.locator("#detail")).to_have_text("Waiting for a stream…")
        peer.send(wire.Start())
        ready = peer.receive()
        assert isinstance(ready, wire.Ready)
        expect(page.locator("#stream")).to_have_value(ready.session)
        peer.audio(speech(1.0))
        expect(page.locator("#strip .word")).to_have_count(2)
        peer.audio(speech(1.0))
        expect(page.locator("#strip .word")).to_have_count(4)
        expect(page.locator("#summary")).to_contain_text("2.0 s")
        assert page.locator("#strip canvas").count() == 1
        page.locator("#strip .word").first.click()
        expect(page.locator("#detail")).to_contain_text("“word” was said from 0.00 s to 0.50 s")
        page.get_by_label("Follow").uncheck()
        page.evaluate("document.querySelector('#strip').dataset.same = 'yes'")
        peer.audio(speech(1.0))
        peer.send(wire.Eos())
        peer.until(wire.Done)
        expect(page.locator("#stream option")).to_have_text(f"{ready.session} (done)")
        assert page.locator("#strip .word").count() == 4  # it stands still
        page.get_by_label("Follow").check()
        expect(page.locator("#strip .word")).to_have_count(6)
        assert told == []
        found = axe(running, chromium, dark=dark)
        assert found == []
        page.context.close()


def axe(running: Daemon, chromium: Browser, *, dark: bool) -> list[str]:
    """Serious findings, on a page whose policy lets the inspector in."""
    scheme = "dark" if dark else "light"
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{running.http}/debug")
    page.locator("#strip .word").first.wait_for()
    violations = Axe().run(page).response["violations"]
    context.close()
    return [each["id"] for each in violations if each["impact"] in ("serious", "critical")]


def test_a_key_is_taken_from_the_fragment(
    chromium: Browser, told: list[str], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"debug:{KEY}\n")
    with daemon(debug=True, api_keys=str(keys)) as running:
        page = opened(chromium, running, told, dark=False)
        expect(page.locator("#detail")).to_contain_text("The key named debug is needed")
        page.context.close()
        told.clear()
        with running.connect(additional_headers={"X-API-Key": KEY}) as peer:
            peer.send(wire.Start())
            page = opened(chromium, running, told, dark=False, at=f"#key={KEY}")
            expect(page.locator("#stream option")).to_have_count(1)
            page.context.close()
    assert told == []
