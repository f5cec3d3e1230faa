"""Settings of a whole process: its log, and its garbage collector."""

from __future__ import annotations

import gc
import logging
import sys

__all__ = ["configure_logging", "freeze_gc"]


def configure_logging(level: str) -> None:
    """Log single lines to stderr. Libraries stay at warnings: at debug they would show messages."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    package = __name__.split(".", maxsplit=1)[0]
    logging.getLogger(package).setLevel(level.upper())


def freeze_gc() -> None:
    """Exempt every object that exists now from garbage collection: call it once all is loaded.

    A full collection walks through all objects, those of the libraries among them (half a million with
    PyTorch), and stops every stream for as long: a tenth of a second, now and then.
    """
    gc.collect()
    gc.freeze()
