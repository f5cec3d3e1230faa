"""Writes a small model in every weights format, independently of the readers."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file
from whisper.model import ModelDimensions as ReferenceDimensions
from whisper.model import Whisper as ReferenceWhisper
from whisper_stream.model.whisper.dims import ModelDimensions

State = dict[str, torch.Tensor]
Heads = tuple[tuple[int, int], ...]

SMALL = ModelDimensions(
    n_mels=5,
    n_audio_ctx=12,
    n_audio_state=8,
    n_audio_head=4,
    n_audio_layer=3,
    n_vocab=30,
    n_text_ctx=9,
    n_text_state=8,
    n_text_head=2,
    n_text_layer=2,
)


def small_state(seed: int = 0) -> State:
    """Random float32 weights under the names of the reference network."""
    reference = ReferenceWhisper(ReferenceDimensions(**dataclasses.asdict(SMALL)))
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(tensor.shape, generator=generator)
        for key, tensor in reference.state_dict().items()
    }


def pt_file(path: Path, state: State, dims: ModelDimensions = SMALL) -> Path:
    """The layout of the published checkpoints."""
    torch.save({"dims": dataclasses.asdict(dims), "model_state_dict": state}, path)
    return path


# -- Hugging Face: the names of transformers' WhisperForConditionalGeneration

_HF_LAYER = {
    "attn": "self_attn",
    "cross_attn": "encoder_attn",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp_ln": "final_layer_norm",
}
_HF_PROJECTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_HF_OUTER = {
    "ln_post": "layer_norm",
    "ln": "layer_norm",
    "token_embedding": "embed_tokens",
    "conv1": "conv1",
    "conv2": "conv2",
}


def _hf_name(key: str) -> str:
    side, *rest = key.split(".")
    if side not in ("encoder", "decoder"):
        return key
    if rest == ["positional_embedding"]:
        return f"model.{side}.embed_positions.weight"
    if rest[0] != "blocks":
        return f"model.{side}.{_HF_OUTER[rest[0]]}.{rest[1]}"
    _, layer, part, *tail = rest
    if part == "mlp":
        middle = {"0": "fc1", "2": "fc2"}[tail[0]]
    elif part.endswith("_ln"):
        middle = _HF_LAYER[part]
    else:
        middle = f"{_HF_LAYER[part]}.{_HF_PROJECTION[tail[0]]}"
    return f"model.{side}.layers.{layer}.{middle}.{tail[-1]}"


def hf_state(state: State) -> State:
    return {_hf_name(key): tensor.clone() for key, tensor in state.items()}


def hf_directory(path: Path, state: State, *, shards: int = 1, heads: Heads | None = None) -> Path:
    path.mkdir()
    config = {
        "model_type": "whisper",
        "d_model": SMALL.n_audio_state,
        "encoder_layers": SMALL.n_audio_layer,
        "encoder_attention_heads": SMALL.n_audio_head,
        "decoder_layers": SMALL.n_text_layer,
        "decoder_attention_heads": SMALL.n_text_head,
        "vocab_size": SMALL.n_vocab,
        "num_mel_bins": SMALL.n_mels,
        "max_source_positions": SMALL.n_audio_ctx,
        "max_target_positions": SMALL.n_text_ctx,
    }
    (path / "config.json").write_text(json.dumps(config))
    if heads is not None:
        (path / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    tensors = hf_state(state)
    tensors["proj_out.weight"] = state["decoder.token_embedding.weight"].clone()
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[number::shards]}
        save_file(part, path / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


# -- CTranslate2

_CT2_IDS = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}


def ct2_directory(
    path: Path,
    state: State,
    *,
    bits: int | None = None,
    quantise_convolutions: bool = False,
    heads: Heads | None = None,
) -> Path:
    """A directory as CTranslate2's converter for Whisper writes it."""
    path.mkdir()
    variables = _ct2_variables(state)
    if bits is not None:
        variables = _quantised(variables, bits, quantise_convolutions)
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (path / "model.bin").write_bytes(_ct2_bytes(variables, aliases))
    config: dict[str, object] = {"suppress_ids": [1]}
    if heads is not None:
        config["alignment_heads"] = heads
    (path / "config.json").write_text(json.dumps(config))
    return path


def _ct2_variables(state: State) -> State:
    out: State = {
        "encoder/num_heads": torch.tensor(SMALL.n_audio_head, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(SMALL.n_text_head, dtype=torch.int16),
        "decoder/activation": torch.tensor(3, dtype=torch.int8),
        "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
    }
    for side in ("encoder", "decoder"):
        _copy(out, f"{side}/position_encodings/encodings", state, f"{side}.positional_embedding")
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            _copy(out, f"encoder/{conv}/{kind}", state, f"encoder.{conv}.{kind}")
    _copy(out, "decoder/embeddings/weight", state, "decoder.token_embedding.weight")
    _norm(out, "encoder/layer_norm", state, "encoder.ln_post")
    _norm(out, "decoder/layer_norm", state, "decoder.ln")
    for layer in range(SMALL.n_audio_layer):
        _ct2_layer(out, f"encoder/layer_{layer}", state, f"encoder.blocks.{layer}")
    for layer in range(SMALL.n_text_layer):
        to, source = f"decoder/layer_{layer}", f"decoder.blocks.{layer}"
        _ct2_layer(out, to, state, source)
        _norm(out, f"{to}/attention/layer_norm", state, f"{source}.cross_attn_ln")
        cross = f"{source}.cross_attn"
        _linear(out, f"{to}/attention/linear_0", state, [f"{cross}.query"])
        _linear(out, f"{to}/attention/linear_1", state, [f"{cross}.key", f"{cross}.value"])
        _linear(out, f"{to}/attention/linear_2", state, [f"{cross}.out"])
    return out


def _ct2_layer(out: State, to: str, state: State, source: str) -> None:
    attn = f"{source}.attn"
    _norm(out, f"{to}/self_attention/layer_norm", state, f"{source}.attn_ln")
    fused = [f"{attn}.query", f"{attn}.key", f"{attn}.value"]
    _linear(out, f"{to}/self_attention/linear_0", state, fused)
    _linear(out, f"{to}/self_attention/linear_1", state, [f"{attn}.out"])
    _norm(out, f"{to}/ffn/layer_norm", state, f"{source}.mlp_ln")
    _linear(out, f"{to}/ffn/linear_0", state, [f"{source}.mlp.0"])
    _linear(out, f"{to}/ffn/linear_1", state, [f"{source}.mlp.2"])


def _copy(out: State, to: str, state: State, source: str) -> None:
    if source in state:
        out[to] = state[source]


def _norm(out: State, to: str, state: State, source: str) -> None:
    _copy(out, f"{to}/gamma", state, f"{source}.weight")
    _copy(out, f"{to}/beta", state, f"{source}.bias")


def _linear(out: State, to: str, state: State, sources: list[str]) -> None:
    weights = [state[f"{source}.weight"] for source in sources if f"{source}.weight" in state]
    if not weights:
        return
    out[f"{to}/weight"] = torch.cat(weights)
    zeros = torch.zeros(weights[0].shape[0], dtype=weights[0].dtype)  # keys have no bias
    out[f"{to}/bias"] = torch.cat([state.get(f"{source}.bias", zeros) for source in sources])


def _quantised(variables: State, bits: int, convolutions: bool) -> State:
    top = 2 ** (bits - 1) - 1
    out: State = {}
    for name, tensor in variables.items():
        quantise = name.endswith("/weight") and (convolutions or "/conv" not in name)
        if not quantise:
            out[name] = tensor
            continue
        rows = tensor.flatten(1)
        largest = rows.abs().amax(1) if bits == 8 else rows.abs().max()
        scale = top / largest
        spread = scale[:, None] if bits == 8 else scale
        dtype = torch.int8 if bits == 8 else torch.int16
        out[name] = (rows * spread).round().to(dtype).view(tensor.shape)
        out[f"{name}_scale"] = scale
    return out


def _ct2_bytes(variables: State, aliases: dict[str, str]) -> bytes:
    out = struct.pack("<I", 6) + _text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, tensor in sorted(variables.items()):
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        shape = tuple(tensor.shape)
        out += _text(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
        out += struct.pack("<BI", _CT2_IDS[tensor.dtype], len(raw)) + raw
    out += struct.pack("<I", len(aliases))
    return out + b"".join(_text(alias) + _text(name) for alias, name in aliases.items())


def _text(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw
