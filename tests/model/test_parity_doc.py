"""docs/whisper-parity.md: names everything of the reference, and nothing of ours that is not there."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.clients.cli.transcribe import transcribe_parser

DOCUMENT = Path(__file__).parents[2] / "docs" / "whisper-parity.md"
# functions of the reference whose arguments are part of its interface
INTERFACES = frozenset(
    ("transcribe", "load_model", "decode", "detect_language", "load_audio", "pad_or_trim")
    + ("log_mel_spectrogram", "get_tokenizer", "get_writer", "find_alignment")
    + ("add_word_timestamps", "iterate_result")
)


def _rows() -> Iterator[tuple[list[str], list[str], str]]:
    """Names there, names here, and the note of every row."""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| there")):
            there, here, note = (cell.strip() for cell in line.strip("|").split(" | ", 2))
            yield re.findall(r"`([^`]+)`", there) or [there], re.findall(r"`([^`]+)`", here), note
            assert here == "none" or "`" in here, line


def _reference() -> dict[str, ast.Module]:
    """The reference's modules, by name: read, not run."""
    spec = importlib.util.find_spec("whisper")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text())
        for path in root.rglob("*.py")
    }


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _defined(node.body)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node


def _arguments(function: ast.FunctionDef) -> list[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [argument.arg for argument in every if argument is not None and argument.arg != "self"]


def _reference_names() -> Iterator[str]:
    for module, tree in _reference().items():
        for name, node in _defined(tree.body):
            yield f"{module}.{name}"
            inside = list(_defined(node.body)) if isinstance(node, ast.ClassDef) else []
            for member, _ in inside:
                if not member.startswith("__"):
                    yield f"{module}.{name}.{member}"
            for function in (node, *(child for _, child in inside)):
                if isinstance(function, ast.FunctionDef) and function.name in INTERFACES:
                    if module != "tokenizer" or function.name == "get_tokenizer":
                        yield from (f"{function.name}({a})" for a in _arguments(function))


def _reference_flags() -> Iterator[str]:
    for node in ast.walk(_reference()["transcribe"]):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            assert isinstance(node.args[0], ast.Constant)
            yield str(node.args[0].value)


def test_everything_of_the_reference_is_named() -> None:
    named = {name for there, _, _ in _rows() for name in there}
    names = set(_reference_names())
    assert len(names) > 250
    assert {"decoding.DecodingOptions.patience", "transcribe(clip_timestamps)"} <= names
    flags = set(_reference_flags())
    assert {"audio", "--model", "--hallucination_silence_threshold"} <= flags
    assert len(flags) == 33
    assert sorted((names | flags) - named) == []


def test_each_name_of_the_reference_is_one() -> None:
    """So that the table does not outlive what it describes."""
    known = {*_reference_names(), *_reference_flags(), "subprocess.CalledProcessError"}
    known.add("XDG_CACHE_HOME")
    tables = (there for there, _, _ in _rows())
    named = {name for there in tables for name in there if re.fullmatch(r"[\w.()-]+", name)}
    headings = {"Verification", "_detect_language"}
    assert sorted(named - known - headings) == []


def test_every_section_of_the_guide_is_named() -> None:
    text = DOCUMENT.read_text().split("administrator and developer guide")[1]
    first_cells = " ".join(line.split(" | ")[0] for line in text.splitlines())
    for chapter, last in {1: 4, 2: 3, 3: 5, 4: 5, 5: 5, 6: 6, 7: 5, 8: 14, 9: 5}.items():
        for section in range(1, last + 1):
            covered = re.search(rf"\b{chapter}\.{section}\b", first_cells)
            assert covered, f"{chapter}.{section}"


HERE = sorted({name for _, here, _ in _rows() for name in here})


@pytest.mark.parametrize("name", HERE)
def test_each_name_of_ours_exists(name: str) -> None:
    if name.startswith("--"):
        assert name in transcribe_parser()._option_string_actions
        return
    path, _, argument = name.rstrip(")").partition("(")
    attributes = path.split(".")
    layer = attributes.pop(0) if attributes[0] == "clients" else "model"
    found: Any = import_module(f"whisper_stream.{layer}")
    while hasattr(found, "__path__"):  # a package: the next name is one of its modules
        found = import_module(f"{found.__name__}.{attributes.pop(0)}")
    for attribute in attributes:
        fields = getattr(found, "__dataclass_fields__", {})
        found = fields[attribute] if attribute in fields else getattr(found, attribute)
    if argument:
        assert argument in inspect.signature(found).parameters


def test_what_has_no_place_here_says_why() -> None:
    for there, here, note in _rows():
        assert here or note.strip(" |"), there
