"""How repetitive a text is: the test of the fallback ladder for loops. No torch here."""

from __future__ import annotations

import zlib

__all__ = ["MAX_COMPRESSION_RATIO", "compression_ratio"]

MAX_COMPRESSION_RATIO = 2.4  # of a text; above it, the text repeats itself


def compression_ratio(text: str) -> float:
    """Return the bytes of ``text`` in UTF-8 over those after zlib; 0.0 for no text."""
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))
