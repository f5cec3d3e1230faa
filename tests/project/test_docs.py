"""The examples of docs/api.md run as they stand, and print what they say."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import whisper_stream.model
from whisper_stream.model import DecodingOptions, DecodingResult, transcribe

TESTS = Path(__file__).parents[1]
API = (TESTS.parent / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", API, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(120)  # transcribes recordings, one of them with beams
def test_the_examples_run_and_print_what_they_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(TESTS / "data")
    namespace: dict[str, Any] = {}
    assert len(EXAMPLES) >= 10
    for example in EXAMPLES:
        exec(compile(example, "docs/api.md", "exec"), namespace)
        said = re.findall(r"print\(.*\)  # (.*)$", example, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == said, example


@pytest.mark.parametrize("name", whisper_stream.model.__all__)
def test_every_public_name_has_its_place(name: str) -> None:
    headings = "\n".join(line for line in API.splitlines() if line.startswith("### "))
    assert f"`{name}" in headings


def test_every_option_and_field_is_described() -> None:
    for option in fields(DecodingOptions):
        default = f'"{option.default}"' if isinstance(option.default, str) else option.default
        assert f"| `{option.name}` | `{default}` |" in API
    for field in fields(DecodingResult):
        assert f"`{field.name}`" in API
    section = API.split("### `transcribe(")[1]
    for name in list(inspect.signature(transcribe).parameters)[2:-1]:
        assert f"`{name}`" in section
