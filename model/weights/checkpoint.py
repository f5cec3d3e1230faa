"""Read a Whisper checkpoint of any supported format.

`read_checkpoint` looks at what lies at a path and hands over to the reader of that format; every
reader gives the tensors under the names of the published `.pt` files, so that the rest of the
package knows one naming only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import UnknownModelError, WeightsError
from ..whisper.dims import ModelDimensions, tensor_shapes
from . import ctranslate2 as weights_ct2
from . import huggingface as weights_hf
from . import openai as weights_openai
from .registry import lookup

__all__ = ["Checkpoint", "read_checkpoint"]

AlignmentHeads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of one model, in memory or mapped from the file.

    ``state`` holds exactly the tensors of `tensor_shapes(dims)`. They keep the type they are stored
    in (float16 mostly), those of a quantised directory become float32. Tensors may be views of a
    larger one or of a mapped file: copy before writing into them.
    """

    dims: ModelDimensions
    state: dict[str, torch.Tensor]
    alignment_heads: AlignmentHeads | None  # (decoder layer, head); None: the format gives none
    name: str | None  # the published name, where known
    source: Path


def read_checkpoint(path: Path | Sequence[Path], *, name: str | None = None) -> Checkpoint:
    """Read the weights at ``path``.

    Args:
        path: an OpenAI `.pt` file, a CTranslate2 directory, or a Hugging Face safetensors
            directory. Several directories: one split CTranslate2 model, the first with config.json.
        name: the published model these weights are; its alignment heads apply where the format has
            none. By default the name of a `.pt` file counts if its sizes are those of that model.

    Raises:
        WeightsError: nothing there, damaged, or not the weights of a Whisper model.
    """
    paths = (path,) if isinstance(path, Path) else tuple(path)
    if not paths:
        raise ValueError("read_checkpoint needs at least one path")
    checkpoint = _read(paths)
    _check_tensors(checkpoint)
    _check_heads(checkpoint)
    return _with_published_facts(checkpoint, name)


def _read(paths: tuple[Path, ...]) -> Checkpoint:
    first = paths[0]
    try:
        if first.is_file():
            dims, state = weights_openai.read(first)
            return _checkpoint(first, dims, state, None)
        if not first.exists():
            raise WeightsError(f"There is no file or folder {first}: check the path of the model.")
        if weights_ct2.is_ct2(first):
            return _checkpoint(first, *weights_ct2.read(paths))
        if weights_hf.is_hf(first):
            return _checkpoint(first, *weights_hf.read(first))
    except OSError as error:
        reason = error.strerror or str(error)
        raise WeightsError(f"Cannot read the weights at {first}: {reason}.") from error
    raise WeightsError(
        f"{first} holds no Whisper weights: expected a .pt file, or a folder with model.bin"
        " (CTranslate2) or model.safetensors (Hugging Face)."
    )


def _checkpoint(
    source: Path,
    dims: ModelDimensions,
    state: dict[str, torch.Tensor],
    heads: AlignmentHeads | None,
) -> Checkpoint:
    return Checkpoint(dims=dims, state=state, alignment_heads=heads, name=None, source=source)


def _check_tensors(checkpoint: Checkpoint) -> None:
    wanted = tensor_shapes(checkpoint.dims)
    source, state = checkpoint.source, checkpoint.state
    for key, shape in wanted.items():
        tensor = state.get(key)
        if tensor is None:
            raise WeightsError(f"{source} lacks the tensor {key}: get the model again.")
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise WeightsError(
                f"{source} has {key} as {tensor.dtype} {list(tensor.shape)} where numbers of shape"
                f" {list(shape)} are due: it is not the Whisper model it says."
            )
    unknown = _first_unknown(state, wanted)
    if unknown is not None:
        raise WeightsError(
            f"{source} has a tensor {unknown} that Whisper does not: give a plain Whisper model."
        )


def _first_unknown(state: Mapping[str, object], wanted: Mapping[str, object]) -> str | None:
    return next((str(key) for key in state if key not in wanted), None)


def _check_heads(checkpoint: Checkpoint) -> None:
    dims = checkpoint.dims
    for layer, head in checkpoint.alignment_heads or ():
        if not (0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head):
            raise WeightsError(
                f"{checkpoint.source} names the alignment head [{layer}, {head}], which this model"
                " does not have: correct its alignment_heads."
            )


def _with_published_facts(checkpoint: Checkpoint, name: str | None) -> Checkpoint:
    guess = name or (checkpoint.source.stem if checkpoint.source.suffix == ".pt" else None)
    if guess is None:
        return checkpoint
    try:
        published = lookup(guess)
    except UnknownModelError:
        return checkpoint
    if published.dims != checkpoint.dims:
        if name is None:
            return checkpoint
        raise WeightsError(
            f"{checkpoint.source} is not {name}: its sizes differ from the published model's."
        )
    heads = checkpoint.alignment_heads or published.alignment_heads
    return replace(checkpoint, name=published.name, alignment_heads=heads)
