"""Where the daemon's log lines go, and which."""

from __future__ import annotations

import logging
import sys

__all__ = ["configure_logging"]


def configure_logging(level: str) -> None:
    """Log single lines to stderr. Libraries stay at warnings: at debug they would show messages."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    package = __name__.split(".", maxsplit=1)[0]
    logging.getLogger(package).setLevel(level.upper())
