"""How PyTorch's worker threads wait for each other. No torch here: it must be settled before torch loads."""

from __future__ import annotations

import os

__all__ = ["wait_politely"]


def wait_politely() -> None:
    """Makes OpenMP's threads sleep while they wait, unless the environment already says how.

    By default they spin. That costs nothing on an idle machine, but as soon as another program wants
    a core, each of the hundreds of small steps of a decode waits for a thread that spins on the wrong
    one: an update then takes ten times as long. Call before torch is first imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
