"""How repetitive a text is: the test of the fallback ladder for loops. No torch here."""

from __future__ import annotations

import zlib

__all__ = ["compression_ratio"]


def compression_ratio(text: str) -> float:
    """Bytes of UTF-8 over bytes after zlib: above 2.4 or so, the text repeats itself. 0.0 for no text."""
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))
