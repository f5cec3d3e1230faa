"""The package as installed: its list of packages, the direction of its imports, what a client loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("model", "streamer", "server", "clients")
# what each layer may import besides itself; the clients see of the server only its wire format, and of the
# model only what judges the bytes of recordings, which loads no torch
ALLOWED = {
    "model": set(),
    "streamer": {"model"},
    "server": {"streamer", "model"},
    "clients": {"server", "model"},
}
SEEN_BY_CLIENTS = {
    "server": {"wire", "codec", "errors", "captions", "word_times"},
    "model": {"damage", "headers", "samples"},
}


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """(layer, module) of every import from another layer."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
            layer, _, module = node.module.partition(".")
            for alias in node.names:
                yield layer, module or alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            assert not node.module.startswith("whisper_stream"), f"{path}: use a relative import"


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"whisper_stream"} | {
        ".".join(("whisper_stream", *init.parent.relative_to(ROOT).parts))
        for layer in LAYERS
        for init in (ROOT / layer).rglob("__init__.py")
    }
    assert set(listed) == found


def test_no_folder_shadows_the_package() -> None:
    assert not (ROOT / "whisper_stream").exists()
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer: str) -> None:
    paths = sorted((ROOT / layer).rglob("*.py"))
    assert paths
    for path in paths:
        for target, module in _imports(path):
            if target in LAYERS:
                assert target in ALLOWED[layer], f"{path.name} imports {target}"
                if layer == "clients":
                    seen = SEEN_BY_CLIENTS[target]
                    assert module in seen, f"{path.name} imports {target}.{module}"


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_clients_load_no_torch() -> None:
    modules = sorted(path.stem for path in (ROOT / "clients").glob("*.py") if path.stem[0] != "_")
    statement = "\n".join(f"import whisper_stream.clients.{name}" for name in modules)
    loaded = _loaded_by(f"import whisper_stream.clients\n{statement}")
    assert "whisper_stream.clients.cli" in loaded
    assert not loaded & {"torch", "numba", "whisper_stream.streamer"}
    assert {name for name in loaded if name.startswith("whisper_stream.model.")} == {
        f"whisper_stream.model.{name}" for name in SEEN_BY_CLIENTS["model"]
    }


def test_help_loads_only_what_it_needs() -> None:
    """What makes `--help` answer at once: none of the slow libraries."""
    loaded = _loaded_by("import whisper_stream.clients.cli")
    assert not loaded & {"torch", "numpy", "av", "rich.live", "websockets", "asyncio"}


def test_architecture_names_every_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for layer in LAYERS:
        section = text.split(f"### {layer}/")[1].split("###")[0]
        for path in (ROOT / layer).glob("*.py"):
            if path.name != "__init__.py":
                assert f"`{path.name}`" in section, f"ARCHITECTURE.md lacks {layer}/{path.name}"
