"""What the GPU's benchmarks share: models of published sizes, ceilings, and times of work on the device.

Weights that cannot be had are drawn at random: the work is the same, only the text is nonsense.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from whisper_stream.model.weights.registry import available_models, lookup
from whisper_stream.model.whisper.network import TextDecoder, Whisper

__all__ = [
    "ceilings",
    "encoder_flops",
    "milliseconds",
    "openai_model",
    "parser",
    "random_model",
    "report",
    "transformers_config",
]


def random_model(name: str, dtype: torch.dtype = torch.float16, device: str = "cuda") -> Whisper:
    """A model of the published size ``name``, with random weights."""
    published = lookup(name)
    with torch.device(device):
        model = Whisper(published.dims, name=name, alignment_heads=published.alignment_heads)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.02)
            for part in model.modules():
                if isinstance(part, torch.nn.LayerNorm):
                    part.weight.fill_(1.0)
    assert isinstance(model.decoder, TextDecoder)
    model = model.to(dtype).requires_grad_(False).eval()
    model.decoder.projection.weight = model.decoder.token_embedding.weight
    return model


def openai_model(model: Whisper, device: str = "cuda") -> Any:
    """openai-whisper's model of the same size, with random weights; raises ImportError where it is not."""
    import whisper

    names = whisper.model.ModelDimensions.__annotations__
    dims = whisper.model.ModelDimensions(**{name: getattr(model.dims, name) for name in names})
    peer = whisper.model.Whisper(dims)
    return peer.to(device).eval()  # its weights stay float32 and are cast as they are used


def transformers_config(model: Whisper, **options: object) -> Any:
    """The same size for transformers, with its other ``options``; raises ImportError where it is not."""
    from transformers import WhisperConfig

    dims = model.dims
    return WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_audio_state,
        encoder_layers=dims.n_audio_layer,
        encoder_attention_heads=dims.n_audio_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_layers=dims.n_text_layer,
        decoder_attention_heads=dims.n_text_head,
        decoder_ffn_dim=4 * dims.n_text_state,
        **options,
    )


def milliseconds(
    work: Callable[..., object], *given: object, warm: int = 3, rounds: int = 10
) -> float:
    """The median time of ``work(*given)`` on the device."""
    for _ in range(warm):
        work(*given)
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(*given)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def ceilings(dtype: torch.dtype = torch.float16) -> tuple[float, float]:
    """TFLOP/s of a large matrix product, and TB/s of a large copy (bytes read and written)."""
    a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    b = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    product = milliseconds(torch.matmul, a, b, rounds=20)
    source = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    copy = milliseconds(target.copy_, source, rounds=20)
    return 2 * 8192**3 / product / 1e9, 2 * source.numel() * 4 / copy / 1e9


def encoder_flops(model: Whisper, positions: int) -> float:
    """Floating-point operations of encoding one window of so many positions of 20 ms."""
    dims = model.dims
    state = dims.n_audio_state
    first = 2 * (2 * positions) * dims.n_mels * 3 * state
    second = 2 * positions * state * 3 * state
    layer = 24 * positions * state**2 + 4 * positions**2 * state
    return float(first + second + dims.n_audio_layer * layer)


def parser(text: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--models",
        nargs="+",
        default=["large-v3-turbo", "large-v3"],
        choices=available_models(),
        metavar="NAME",
        help="of published sizes",
    )
    return made


def report(figures: dict[str, object]) -> int:
    """Print the figures as one JSON object, last."""
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0
