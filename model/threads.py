"""How PyTorch's threads wait, and what oneDNN and MKL keep. No torch here: it is settled before torch loads."""

from __future__ import annotations

import os

__all__ = ["MOST_THREADS", "keep_little_code", "keep_no_buffers", "wait_politely"]

MOST_THREADS = 512  # that may be asked for; OpenMP crashes where it cannot make them


def wait_politely() -> None:
    """Makes OpenMP's threads sleep while they wait, unless the environment already says how.

    By default they spin. That costs nothing on an idle machine, but as soon as another program wants
    a core, each of the hundreds of small steps of a decode waits for a thread that spins on the wrong
    one: an update then takes ten times as long. Call before torch is first imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_little_code() -> None:
    """Makes oneDNN keep the machine code of the last 256 shapes, unless the environment says how many.

    It compiles some for every shape it meets, and keeps 1024 by default: a stream without a breath, whose
    windows and texts have every length there is, then takes 50 MB more, and still grows after five
    minutes. 256 are those of all lengths of windows. Call before torch is first imported.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def keep_no_buffers() -> None:
    """Makes MKL free the buffers of a product after it, unless the environment says otherwise.

    It would keep 6 MB for every thread that ever made a spectrogram, and none of that is of use to
    anything else. Call before torch is first imported.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")
