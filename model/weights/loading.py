"""``load_model``: from a name or a path to a model that is ready to run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..cpu.compute_types import prepare_for_cpu, resolve_compute_type
from ..cpu.runtime import trim_malloc
from ..errors import ModelError, WeightsError
from ..whisper.network import TextDecoder, Whisper
from .checkpoint import Checkpoint, read_checkpoint
from .locate import fetch, locate

__all__ = ["build_model", "load_model", "pick_device"]


def load_model(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    compute_type: str = "auto",
    download_root: str | Path | None = None,
) -> Whisper:
    """Loads a published model by name, or any checkpoint by path, in evaluation mode.

    Looks in this order: an explicit path, the user's cache, an installed weight package, and last the
    publisher's server. ``device`` defaults to CUDA where there is one.

    Raises UnknownModelError, WeightsError, DownloadError or ModelError, each with one clear sentence.
    """
    target = pick_device(device)
    chosen = resolve_compute_type(compute_type, target)
    source = locate(str(name_or_path), download_root=download_root)
    checkpoint = read_checkpoint(fetch(source), name=source.name)
    model = build_model(checkpoint, name=source.name, device=target, compute_type=chosen)
    del checkpoint
    trim_malloc()
    return model


def pick_device(device: str | torch.device | None) -> torch.device:
    """``device``, or the best one there is. Raises ModelError where it does not exist."""
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ModelError(f"unknown device {device!r}: use cpu, cuda or cuda:N") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} is not available here: PyTorch sees no GPU; use cpu")
    if target.type not in ("cpu", "cuda"):
        raise ModelError(f"unknown device {device!r}: use cpu, cuda or cuda:N")
    return target


def build_model(
    checkpoint: Checkpoint, *, name: str | None, device: torch.device, compute_type: str
) -> Whisper:
    """Puts the weights of ``checkpoint`` into a network. ``compute_type`` must be a resolved one."""
    model = Whisper(
        checkpoint.dims,
        name=name or checkpoint.name or "custom",
        alignment_heads=checkpoint.alignment_heads,  # published ones were put there by the reader
    )
    state = _fused(checkpoint)
    if device.type != "cpu":
        dtype = getattr(torch, compute_type)
        state = {key: value.to(device, dtype) for key, value in state.items()}
    model.load_state_dict(state, strict=True, assign=True)
    assert isinstance(model.decoder, TextDecoder)
    model.decoder.projection.weight = model.decoder.token_embedding.weight
    if device.type == "cpu":
        prepare_for_cpu(model, compute_type)
    model.requires_grad_(False)
    return model.eval()


_RENAMES = {
    "attn.out": "attn_out",
    "cross_attn.out": "cross_out",
    "cross_attn.query": "cross_query",
    "cross_attn_ln": "cross_ln",
    "mlp.0": "mlp_in",
    "mlp.2": "mlp_out",
}


def _fused(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The state dict with queries, keys and values fused, under this network's names."""
    state = dict(checkpoint.state)
    fused: dict[str, Tensor] = {}
    for stack, layers in (
        ("encoder", checkpoint.dims.n_audio_layer),
        ("decoder", checkpoint.dims.n_text_layer),
    ):
        for layer in range(layers):
            prefix = f"{stack}.blocks.{layer}"
            _fuse(state, fused, f"{prefix}.attn", ("query", "key", "value"), f"{prefix}.attn_qkv")
            if stack == "decoder":
                _fuse(state, fused, f"{prefix}.cross_attn", ("key", "value"), f"{prefix}.cross_kv")
    for key, value in state.items():
        for old, new in _RENAMES.items():
            if f".{old}." in key:
                key = key.replace(f".{old}.", f".{new}.")
                break
        fused[key] = value
    fused["decoder.projection.weight"] = fused["decoder.token_embedding.weight"]
    fused.pop("decoder.mask", None)  # some files carry the causal mask
    return fused


def _fuse(
    state: dict[str, Tensor],
    out: dict[str, Tensor],
    source: str,
    parts: tuple[str, ...],
    target: str,
) -> None:
    try:
        weights = [state.pop(f"{source}.{part}.weight") for part in parts]
    except KeyError as missing:
        raise WeightsError(
            f"the checkpoint lacks {missing.args[0]}: it is not a Whisper model"
        ) from None
    biases = [
        state.pop(f"{source}.{part}.bias", torch.zeros(weight.shape[0], dtype=weight.dtype))
        for part, weight in zip(parts, weights, strict=True)
    ]  # keys have no bias
    out[f"{target}.weight"] = torch.cat(weights)  # rows: queries, keys, values
    out[f"{target}.bias"] = torch.cat(biases)
