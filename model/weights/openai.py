"""Read an OpenAI `.pt` checkpoint: ``{"dims": {...}, "model_state_dict": {...}}``."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path

import torch

from ..errors import WeightsError
from ..whisper.dims import ModelDimensions

__all__ = ["read"]

# What torch.load raises for damaged bytes, depending on where they are damaged.
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def read(path: Path) -> tuple[ModelDimensions, dict[str, torch.Tensor]]:
    """Dimensions and tensors of the file. Nothing but tensors and plain values is unpickled.

    Raises:
        WeightsError: damaged, or not such a checkpoint.
    """
    try:
        # Only the zip form that torch writes since 1.6 can be mapped; others are not checkpoints
        # that Whisper was ever published in.
        with zipfile.ZipFile(path) as archive:
            archive.infolist()
        with warnings.catch_warnings():
            # of an odd pickle protocol: what matters is whether the tensors are all there
            warnings.simplefilter("ignore", UserWarning)
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except _DAMAGE as error:
        raise WeightsError(
            f"{path} is not a readable Whisper checkpoint (.pt): it is damaged, incomplete or of"
            " another kind; get it again."
        ) from error
    return _dimensions(path, loaded), _state(path, loaded)


def _dimensions(path: Path, loaded: object) -> ModelDimensions:
    dims = loaded.get("dims") if isinstance(loaded, dict) else None
    try:
        if not isinstance(dims, dict):
            raise TypeError("no dims")
        return ModelDimensions(**dims)
    except (TypeError, ValueError) as error:
        raise WeightsError(
            f"{path} is a PyTorch file but not a Whisper checkpoint: it has no usable model"
            f" dimensions ({error})."
        ) from error


def _state(path: Path, loaded: object) -> dict[str, torch.Tensor]:
    state = loaded.get("model_state_dict") if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(torch.is_tensor(item) for item in state.values()):
        raise WeightsError(
            f"{path} is a PyTorch file but not a Whisper checkpoint: it has no model_state_dict."
        )
    return {str(key): tensor for key, tensor in state.items()}
