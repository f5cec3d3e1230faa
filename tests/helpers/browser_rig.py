"""Chromium without a window, with a microphone that plays a recording."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

__all__ = ["CHROMIUM", "browser", "open_page"]

# Debian's, or any other: nothing is downloaded.
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@contextmanager
def browser(playwright: Playwright, recording: Path | None, *flags: str) -> Iterator[Browser]:
    """A browser whose only microphone plays ``recording`` once; None: it has no microphone."""
    assert CHROMIUM is not None, "the browser tests need Chromium: apt-get install chromium"
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--autoplay-policy=no-user-gesture-required",
        *flags,
    ]
    if recording is not None:
        arguments += [
            "--use-fake-device-for-media-stream",
            f"--use-file-for-fake-audio-capture={recording}%noloop",
        ]
    opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def open_page(
    opened: Browser,
    url: str,
    *,
    microphone: bool = True,
    size: tuple[int, int] = (1280, 800),
    dark: bool = False,
    bypass_csp: bool = False,
    scale: float = 1,
) -> Iterator[Page]:
    """A page in a profile of its own, once it has loaded; its errors fail the test."""
    context: BrowserContext = opened.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        permissions=["microphone"] if microphone else [],
        locale="en-GB",
        bypass_csp=bypass_csp,
        device_scale_factor=scale,
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
    try:
        page.goto(url)
        page.wait_for_selector("#model:not(:empty)", state="attached")
        yield page
    finally:
        context.close()
    # A refused connection is what some tests are about; the browser itself reports it.
    unexpected = [text for text in problems if "net::ERR" not in text and "WebSocket" not in text]
    assert not unexpected, unexpected
