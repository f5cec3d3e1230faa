"""The flags of ``whisper-stream transcribe`` are those of the ``whisper`` command."""

from __future__ import annotations

import argparse
import importlib
import itertools
from typing import Any

import numpy as np
import pytest
from whisper_stream.clients.cli.transcribe import (
    fallback_temperatures,
    parse_settings,
    transcribe_parser,
)

OWN_FLAGS = {"compute_type", "batch_size"}
# `whisper.transcribe` is a function: it hides its module.
reference_command = importlib.import_module("whisper.transcribe")


class _Captured(Exception):
    pass


@pytest.fixture(scope="module")
def reference_flags() -> dict[str, argparse.Action]:
    captured: list[argparse.ArgumentParser] = []

    def capture(parser: argparse.ArgumentParser, *_: object) -> None:
        captured.append(parser)
        raise _Captured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        with pytest.raises(_Captured):
            reference_command.cli()
    return _flags(captured[0])


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions}


def test_every_flag_is_that_of_the_reference(reference_flags: dict[str, argparse.Action]) -> None:
    ours = _flags(transcribe_parser())
    assert set(ours) == set(reference_flags) | OWN_FLAGS
    for name, theirs in reference_flags.items():
        assert set(ours[name].option_strings) == set(theirs.option_strings)
        assert ours[name].nargs == theirs.nargs
        assert set(ours[name].choices or ()) == set(theirs.choices or ()), name
        if name != "device":  # ours is decided when torch is loaded
            assert ours[name].default == theirs.default, name
    assert ours["device"].default is None


SAMPLE_VALUES = (
    "None",
    "True",
    "False",
    "3",
    "-1",
    "0.5",
    "inf",
    "x",
    "english",
    "German",
    "en",
    "zz",
)


def test_every_value_reads_as_in_the_reference(
    reference_flags: dict[str, argparse.Action],
) -> None:
    """What the reference takes means the same; what it refuses is refused, but for language names."""
    ours = _flags(transcribe_parser())
    for (name, theirs), text in itertools.product(reference_flags.items(), SAMPLE_VALUES):
        if not callable(theirs.type) or name in ("audio", "model", "language"):
            continue
        try:
            expected = theirs.type(text)
        except ValueError:
            parse: Any = ours[name].type
            with pytest.raises(argparse.ArgumentTypeError):
                parse(text)
        else:
            assert ours[name].type(text) == expected, (name, text)  # type: ignore[operator,misc]


def test_hyphens_do_as_well_as_underscores() -> None:
    argv = "a.wav --output-dir=a-b --beam-size 2 --suppress-tokens -1 --initial-prompt".split()
    settings = parse_settings([*argv, "see --beam-size"])
    assert settings.output_dir == "a-b"
    assert settings.options["beam_size"] == 2
    assert settings.options["suppress_tokens"] == "-1"
    assert settings.options["initial_prompt"] == "see --beam-size"
    assert parse_settings(["--", "--my-file"]).files == ("--my-file",)


@pytest.mark.parametrize("first", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("increment", [0.1, 0.2, 0.25, 0.3, 1.0, 2.0])
def test_the_ladder_is_that_of_numpy(first: float, increment: float) -> None:
    expected = tuple(np.arange(first, 1.0 + 1e-6, increment).tolist())
    assert fallback_temperatures(first, increment) == expected


def test_a_ladder_of_one() -> None:
    assert fallback_temperatures(0.3, None) == (0.3,)
    assert fallback_temperatures(1.5, 0.2) == (1.5,)
