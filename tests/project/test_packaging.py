"""The package as installed: its list of packages, the direction of its imports, what a client loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import whisper_stream

ROOT = Path(__file__).parents[2]
LAYERS = ("model", "streamer", "server", "clients")
# What each room may import besides itself: the first rule whose name begins a module's decides. The SDK and the
# sources see of the server only its wire format, and of the model only what opens recordings: no torch. The command
# line and the tools stand on top of everything, and import it when it is needed.
ALLOWED = {
    "clients.cli": LAYERS,
    "clients.tools": LAYERS,
    "clients": ("clients", "server.protocol", "model.media", "model.errors"),
    "server.protocol": (
        "server.protocol",
        "streamer.commands",
        "model.whisper.languages",
        "model.media.captions",
        "model.media.pcm",
    ),
    "server": ("server", "streamer", "model"),
    "streamer": ("streamer", "model"),
    "model": ("model",),
}
# State machines: no clock, no I/O and no threads of their own.
SANS_IO = (
    "streamer/session",
    "streamer/commands.py",
    "server/protocol",
    "server/stream/stream.py",
    "server/stream/mapping.py",
    "server/stream/identity.py",
    "server/stream/audio_checks.py",
)
_IO = {"asyncio", "socket", "threading", "concurrent", "subprocess", "selectors", "torch", "time"}


def _modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without ``whisper_stream``."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*.py"))
    }


MODULES = _modules()


def _imports(name: str) -> Iterator[str]:
    """Every module of the package that ``name`` imports, also inside functions."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*name.split(".")[: -node.level], *(node.module or "").split(".")]
            target = ".".join(part for part in base if part)
            for alias in node.names:
                inner = f"{target}.{alias.name}"
                yield inner if inner in MODULES else target
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.module.startswith("whisper_stream"), f"{name}: use a relative import"


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"whisper_stream"} | {
        f"whisper_stream.{name.removesuffix('.__init__')}"
        for name in MODULES
        if name.endswith("__init__")
    }
    assert set(listed) == found
    assert all(path.parent / "__init__.py" in MODULES.values() for path in MODULES.values())


def test_the_version_is_the_newest_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", changelog, re.MULTILINE)
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert whisper_stream.__version__ == releases[0]
    assert len(releases) == len([each for each in headings if each != "Unreleased"])


def test_no_folder_shadows_the_package() -> None:
    assert not (ROOT / "whisper_stream").exists()
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name: str) -> None:
    allowed = next(rooms for room, rooms in ALLOWED.items() if f"{name}.".startswith(f"{room}."))
    for target in _imports(name):
        inside = not target or any(f"{target}.".startswith(f"{room}.") for room in allowed)
        assert inside, f"{name} imports {target}"


@pytest.mark.parametrize("room", SANS_IO)
def test_state_machines_have_no_io(room: str) -> None:
    place = ROOT / room
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert paths
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & _IO, f"{path}: {names}"


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_sessions_load_no_torch() -> None:
    """An ingress process holds many of them, and 300 MB less without it."""
    loaded = _loaded_by("import whisper_stream.streamer.session.session")
    assert "whisper_stream.streamer.audio.vad" in loaded
    assert not loaded & {"torch", "numba", "av"}


def test_clients_load_no_torch() -> None:
    names = [
        name.removesuffix(".__init__")
        for name in MODULES
        if name.startswith("clients.") and not name.startswith(("clients.tools", "clients.__main"))
    ]
    loaded = _loaded_by("\n".join(f"import whisper_stream.{name}" for name in names))
    assert "whisper_stream.clients.cli.main" in loaded
    assert not loaded & {"torch", "numba", "whisper_stream.streamer"}


def test_help_loads_only_what_it_needs() -> None:
    """What makes `--help` answer at once: none of the slow libraries."""
    loaded = _loaded_by("import whisper_stream.clients.cli.main")
    assert not loaded & {"torch", "numpy", "av", "rich.live", "websockets", "asyncio"}
