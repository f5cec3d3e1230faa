"""Read a Hugging Face Whisper directory: safetensors, whole or in shards, and config.json.

The names follow transformers' ``WhisperForConditionalGeneration``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from ..errors import WeightsError
from ..whisper.dims import ModelDimensions
from .json_files import read_heads, read_json

__all__ = ["is_hf", "read"]

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_CONFIG_NAMES = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}

# Every rename, applied in this order to a name without its leading "model.".
_RENAMES = (
    (re.compile(r"^(encoder|decoder)\.layers\."), r"\1.blocks."),
    (re.compile(r"\.self_attn_layer_norm\."), ".attn_ln."),
    (re.compile(r"\.encoder_attn_layer_norm\."), ".cross_attn_ln."),
    (re.compile(r"\.self_attn\."), ".attn."),
    (re.compile(r"\.encoder_attn\."), ".cross_attn."),
    (re.compile(r"\.q_proj\."), ".query."),
    (re.compile(r"\.k_proj\."), ".key."),
    (re.compile(r"\.v_proj\."), ".value."),
    (re.compile(r"\.out_proj\."), ".out."),
    (re.compile(r"\.fc1\."), ".mlp.0."),
    (re.compile(r"\.fc2\."), ".mlp.2."),
    (re.compile(r"\.final_layer_norm\."), ".mlp_ln."),
    (re.compile(r"^encoder\.layer_norm\."), "encoder.ln_post."),
    (re.compile(r"^decoder\.layer_norm\."), "decoder.ln."),
    (re.compile(r"^decoder\.embed_tokens\."), "decoder.token_embedding."),
    (re.compile(r"\.embed_positions\.weight$"), ".positional_embedding"),
)
# The output projection is the token embedding, so a copy of it says nothing new.
_TIED = "proj_out.weight"


def is_hf(path: Path) -> bool:
    """Whether the directory looks like one of this format."""
    return (path / _WHOLE).is_file() or (path / _INDEX).is_file()


def read(
    path: Path,
) -> tuple[ModelDimensions, dict[str, torch.Tensor], tuple[tuple[int, int], ...] | None]:
    """Dimensions, tensors and alignment heads (of generation_config.json, if there) of ``path``.

    Raises:
        WeightsError: a file is missing or damaged, or the model is not a Whisper.
    """
    dims = _dimensions(path / "config.json")
    state: dict[str, torch.Tensor] = {}
    for shard in _shards(path):
        for key, tensor in _tensors(shard):
            if key != _TIED:
                state[_rename(key)] = tensor
    generation = path / "generation_config.json"
    return dims, state, read_heads(generation) if generation.is_file() else None


def _dimensions(path: Path) -> ModelDimensions:
    config = read_json(path)
    if config.get("model_type", "whisper") != "whisper":
        raise WeightsError(f"{path} describes a {config['model_type']} model, not a Whisper.")
    sizes: dict[str, int] = {}
    for ours, theirs in _CONFIG_NAMES.items():
        value = config.get(theirs)
        if type(value) is not int:
            raise WeightsError(f"{path} has no usable {theirs}: get the model folder again.")
        sizes[ours] = value
    try:
        return ModelDimensions(**sizes)
    except ValueError as error:
        raise WeightsError(f"{path} does not describe a Whisper model: {error}.") from error


def _shards(path: Path) -> list[Path]:
    if (path / _WHOLE).is_file():
        return [path / _WHOLE]
    weight_map = read_json(path / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path / _INDEX} has no weight_map: get it again.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise WeightsError(f"{path / _INDEX} names a file outside its folder: {name}.")
        if not (path / name).is_file():
            raise WeightsError(f"{path / name} is missing: get the whole model folder again.")
    return [path / name for name in names]


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    # Imported here: no other format needs it, and start-up counts.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as shard:
            for key in shard.keys():
                yield key, shard.get_tensor(key)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{path} is damaged or incomplete: get it again.") from error


def _rename(key: str) -> str:
    name = key.removeprefix("model.")
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name
