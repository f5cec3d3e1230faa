"""Compiled functions, where their machine code can be kept and where it cannot."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.model.jit import compiled

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
    assert compiled(function_in(tmp_path))(14) == 42
    assert list((tmp_path / "__pycache__").glob("kernels.tripled-*.nbc"))


def test_where_no_folder_can_be_written_to_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "__pycache__").write_text("a file, so no folder can be made here")
    for variable in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "__pycache__"))
    function = compiled(function_in(tmp_path))
    assert function(14) == 42
    assert function.stats.cache_path is None


def test_options_reach_the_compiler_and_the_gil_is_released(tmp_path: Path) -> None:
    options = compiled(function_in(tmp_path), fastmath=True).targetoptions
    assert options["nogil"] and options["fastmath"]
    assert options["error_model"] == "numpy"
