"""The argument parser of every command."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

__all__ = ["FlagParser"]


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises an error of one line, instead of printing the usage and exiting.

    ``--help`` and ``--version`` still print and raise SystemExit.

    Args:
        failure: the class of the error; it is made from the message alone.
        options: those of argparse.ArgumentParser.
    """

    def __init__(self, *, failure: type[Exception], **options: Any) -> None:
        super().__init__(**options)
        self._failure = failure

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").rstrip(".")
        raise self._failure(f"{text}; see `{self.prog} --help`")
