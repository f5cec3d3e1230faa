"""Memory that stays: what was loaded at the start is not looked through again and again."""

from __future__ import annotations

import gc

__all__ = ["settle_memory"]


def settle_memory() -> None:
    """Take everything there is for lasting.

    A full collection walks through all objects, those of the libraries among them (half a million with
    PyTorch), and stops every stream for as long: a tenth of a second, now and then.
    """
    gc.collect()
    gc.freeze()
