"""Programs of the system that tests need: ``@pytest.mark.needs("chromium")`` skips a test where one is missing."""

from __future__ import annotations

import ctypes.util
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["REQUIREMENTS", "Requirement", "Requirements"]


class Requirement(NamedTuple):
    """One thing that Python packages do not bring: how to find it, and how to get it."""

    is_found: Callable[[], bool]
    advice: str


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


def _has_chromium() -> bool:
    return any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))


def _has_pulseaudio() -> bool:
    """Look for the server, its player, and the plugin through which PortAudio reaches it."""
    plugins = Path("/usr/lib").glob("*/alsa-lib/libasound_module_pcm_pulse.so")
    return all(map(shutil.which, ("pulseaudio", "paplay"))) and any(plugins)


def _has_portaudio() -> bool:
    return ctypes.util.find_library("portaudio") is not None


REQUIREMENTS = {
    "chromium": Requirement(_has_chromium, "Debian package chromium"),
    "ffmpeg": Requirement(_programs("ffmpeg"), "Debian package ffmpeg"),
    "node": Requirement(_programs("node"), "Debian package nodejs"),
    "openssl": Requirement(_programs("openssl"), "Debian package openssl"),
    "portaudio": Requirement(_has_portaudio, "Debian package libportaudio2"),
    "procfs": Requirement(Path("/proc/self/stat").exists, "only Linux has /proc"),
    "pulseaudio": Requirement(
        _has_pulseaudio, "Debian packages pulseaudio, pulseaudio-utils and libasound2-plugins"
    ),
    "tmux": Requirement(_programs("tmux"), "Debian package tmux"),
}


@cache
def _is_missing(name: str) -> bool:
    return not REQUIREMENTS[name].is_found()


class Requirements:
    """Pytest plugin that skips tests whose requirements are missing, and lists them in the summary."""

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line(
            "markers", f"needs(*names): skip without these: {', '.join(REQUIREMENTS)}"
        )

    @pytest.hookimpl(trylast=True)  # after -k and -m have chosen the tests
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            names = {name for mark in item.iter_markers("needs") for name in mark.args}
            if unknown := sorted(names - REQUIREMENTS.keys()):
                raise pytest.UsageError(
                    f"{item.nodeid} needs {', '.join(unknown)}:"
                    " name one of those in tests/plugins/requirements.py, or add it there"
                )
            for name in sorted(filter(_is_missing, names)):
                self._left_out[name] += 1
                reason = f"{name} is missing: {REQUIREMENTS[name].advice}"
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.section("tests left out", yellow=True)
        for name, count in sorted(self._left_out.items()):
            tests = "1 test" if count == 1 else f"{count} tests"
            terminalreporter.line(f"{name} is missing ({REQUIREMENTS[name].advice}): {tests}")
