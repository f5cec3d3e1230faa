"""Compiled functions, where their machine code can be kept and where it cannot."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from whisper_stream.model.cpu import alignment, kernels
from whisper_stream.model.cpu.numba_cache import cached_njit

SOURCE = """
def tripled(number):
    return 3 * number
"""


def function_in(folder: Path) -> Any:
    """A function whose source lies in ``folder``, beside which numba keeps machine code by itself."""
    file = folder / "kernels.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("kernels", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tripled


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # it would take the folder


def test_the_machine_code_is_kept(tmp_path: Path) -> None:
    assert cached_njit(function_in(tmp_path))(14) == 42
    assert list((tmp_path / "__pycache__").glob("kernels.tripled-*.nbc"))


def test_where_no_folder_can_be_written_to_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "__pycache__").write_text("a file, so no folder can be made here")
    for variable in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "__pycache__"))
    function = cached_njit(function_in(tmp_path))
    assert function(14) == 42
    assert function.stats.cache_path is None


def test_options_reach_the_compiler_and_the_gil_is_released(tmp_path: Path) -> None:
    options = cached_njit(function_in(tmp_path), fastmath=True).targetoptions
    assert options["nogil"] and options["fastmath"]
    assert options["error_model"] == "numpy"


def test_machine_code_of_other_sources_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel takes from the file beside it is compiled into it; the kernel's own file stays."""
    own, beside = tmp_path / "kernels.py", tmp_path / "kernel_math.py"

    def run(factor: int) -> int:
        beside.write_text(f"FACTOR = {factor}\n")
        own.write_text("def scaled(number):\n    return FACTOR * number\n")
        os.utime(own, (1_000_000_000, 1_000_000_000))
        module: Any = ModuleType("kernels")
        module.FACTOR = factor
        monkeypatch.setitem(sys.modules, "kernels", module)  # kept code names its module
        exec(compile(own.read_text(), str(own), "exec"), vars(module))
        result: int = cached_njit(module.scaled, sources=[str(beside)])(10)
        return result

    assert (run(3), run(4), run(3)) == (30, 40, 30)


def test_the_own_source_counts_by_its_text_not_by_its_time(tmp_path: Path) -> None:
    """A package may be unpacked with the times of its archive, all the same."""
    file = tmp_path / "kernels.py"

    def run(factor: int) -> int:
        file.write_text(f"def scaled(number):\n    return {factor} * number\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        space: dict[str, Any] = {"__name__": "kernels"}
        exec(compile(file.read_text(), str(file), "exec"), space)
        result: int = cached_njit(space["scaled"])(10)
        return result

    assert (run(3), run(4)) == (30, 40)


def modules_imported_by(file: str) -> set[str]:
    """The modules beside ``file`` that it imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, f"{file} takes something from another folder"
            found |= {node.module} if node.module else {name.name for name in node.names}
    return found


def test_every_file_that_is_compiled_into_the_kernels_is_named() -> None:
    """A file whose change would leave old machine code in use is not overlooked."""
    assert kernels.__file__ is not None
    named = {Path(source).stem for source in kernels.SOURCES}
    assert modules_imported_by(kernels.__file__) == {"numba_cache"} | named
    for source in kernels.SOURCES:
        assert modules_imported_by(source) <= {"numba_cache"} | named
    assert modules_imported_by(alignment.__file__) == {"numba_cache"}


def test_nothing_else_is_compiled() -> None:
    """A new file of kernels must be added to the test above."""
    root = Path(kernels.__file__).parents[1]
    users = {
        path.name
        for path in root.rglob("*.py")
        if "cached_njit(" in path.read_text().replace("@cached_njit", "cached_njit(")
    }
    assert users == {"numba_cache.py", "kernels.py", "alignment.py"}
