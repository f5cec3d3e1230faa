"""The independent reference: the openai-whisper package, given our checkpoint's weights in fp32."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import torch
from whisper.model import ModelDimensions, Whisper
from whisper_stream.model.weights.checkpoint import Checkpoint, read_checkpoint
from whisper_stream.model.weights.loading import build_model
from whisper_stream.model.weights.locate import fetch, locate
from whisper_stream.model.weights.registry import lookup
from whisper_stream.model.whisper.network import Whisper as OurWhisper

__all__ = ["checkpoint_of", "our_model", "reference_model"]


@cache
@torch.inference_mode(mode=False)  # kept for tests in either mode
def checkpoint_of(name: str) -> Checkpoint:
    source = locate(name, download_root=None)
    return read_checkpoint(fetch(source), name=source.name)


@cache
@torch.inference_mode(mode=False)  # kept for tests in either mode
def our_model(name: str) -> OurWhisper:
    return build_model(
        checkpoint_of(name), name=name, device=torch.device("cpu"), compute_type="float32"
    )


@cache
@torch.inference_mode(mode=False)  # kept for tests in either mode
def reference_model(name: str) -> Any:
    """The reference's network with the same values."""
    checkpoint = checkpoint_of(name)
    model = Whisper(ModelDimensions(**asdict(checkpoint.dims)))
    state = {key: value.float() for key, value in checkpoint.state.items()}
    model.load_state_dict(state, strict=False)
    heads = lookup(name).alignment_heads
    assert heads is not None
    mask = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head, dtype=torch.bool)
    for layer, head in heads:
        mask[layer, head] = True
    model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    return model.eval()
