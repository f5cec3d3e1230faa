"""One decoder step on a GPU, for batches of many sizes, beside the time that reading its memory takes.

    python benchmarks/gpu/decoder.py --models large-v3-turbo large-v3

A step reads all weights, and of every row the keys and values of its audio (30 s here: the worst) and
text. Peers are measured where they are installed, in the same run; weights are random. Prints a line a
batch and, last, one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rig import (
    ceilings,
    milliseconds,
    openai_model,
    parser,
    random_model,
    report,
    transformers_config,
)
from whisper_stream.model.gpu.decoder import Feed, SlotDecoder
from whisper_stream.model.whisper.network import TextDecoder, Whisper

BATCHES = (1, 8, 32, 128)
PAST = 40  # tokens before the step


def step_bytes(model: Whisper, rows: int, positions: int) -> float:
    """Bytes a step must read: decoder weights, and the caches of its rows."""
    decoder = model.decoder
    assert isinstance(decoder, TextDecoder)
    weights = sum(
        parameter.numel()
        for name, parameter in decoder.named_parameters()
        if "cross_kv" not in name and "positional" not in name and "projection" not in name
    )  # the embedding is the projection
    dims = model.dims
    caches = 2 * dims.n_text_layer * dims.n_text_state * (positions + PAST) * rows
    return 2.0 * (weights + caches)


def ours(model: Whisper, batch: int) -> tuple[float, float, float]:
    """Milliseconds of a step: on the device, with what the host does around it, and without a graph."""
    vocabulary = model.dims.n_vocab
    options: dict[str, Any] = {
        "audio_slots": batch,
        "text_slots": batch,
        "barred": torch.zeros(2, vocabulary, device="cuda"),
        "no_speech": vocabulary - 1,
        "silence": [],
    }
    decoder = SlotDecoder(model, **options)
    features = torch.randn(batch * 1500, model.dims.n_audio_state, device="cuda", dtype=model.dtype)
    decoder.caches.enter(features, [(slot, 1500, False) for slot in range(batch)])
    feeds = [
        Feed(text_slot=slot, audio_slot=slot, tokens=[slot], start=PAST) for slot in range(batch)
    ]
    whole = milliseconds(decoder.step, feeds, rounds=30)
    device = milliseconds(decoder.graph(batch).replay, rounds=30)
    plain = milliseconds(SlotDecoder(model, graphs=False, **options).step, feeds)
    return device, whole, plain


def transformers_step(model: Whisper, batch: int) -> float | None:
    try:
        from transformers import DynamicCache, EncoderDecoderCache
        from transformers.models.whisper.modeling_whisper import WhisperDecoder
    except ImportError:
        return None
    dims = model.dims
    config = transformers_config(model, attn_implementation="sdpa")
    decoder = WhisperDecoder(config).to("cuda", model.dtype).eval()
    head = torch.nn.Linear(
        dims.n_text_state, dims.n_vocab, bias=False, device="cuda", dtype=model.dtype
    )
    audio = torch.randn(batch, 1500, dims.n_audio_state, device="cuda", dtype=model.dtype)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    ids = torch.zeros(batch, PAST, dtype=torch.long, device="cuda")
    decoder(input_ids=ids, encoder_hidden_states=audio, past_key_values=cache, use_cache=True)

    def step() -> object:
        out = decoder(
            input_ids=ids[:, :1], encoder_hidden_states=audio, past_key_values=cache, use_cache=True
        )
        return head(out.last_hidden_state[:, -1]).float().argmax(dim=-1)

    return milliseconds(step, warm=10)


def openai_step(model: Whisper, batch: int) -> float | None:
    try:
        peer = openai_model(model)
    except ImportError:
        return None
    cache, hooks = peer.install_kv_cache_hooks()
    audio = torch.randn(batch, 1500, model.dims.n_audio_state, device="cuda", dtype=model.dtype)
    ids = torch.zeros(batch, PAST, dtype=torch.long, device="cuda")
    peer.decoder(ids, audio, kv_cache=cache)
    took = milliseconds(
        lambda: peer.decoder(ids[:, :1], audio, kv_cache=cache)[:, -1].float().argmax(dim=-1)
    )
    for hook in hooks:
        hook.remove()
    return took


PEERS: dict[str, Callable[[Whisper, int], float | None]] = {
    "transformers": transformers_step,
    "openai-whisper": openai_step,
}


@contextmanager
def no_cudnn_attention() -> Iterator[None]:
    """Attention by PyTorch's own kernels.

    cuDNN's would take some 40 ms to plan for every length of text that it meets for the first time; of the
    peers each step is longer than the one before, and that would be all that is measured.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@torch.inference_mode()
def main() -> int:
    options = parser(__doc__)
    options.add_argument("--no-peers", action="store_true")
    args = options.parse_args()
    gemm, copy = ceilings()
    print(f"ceilings: {gemm:.0f} TFLOP/s, copy {copy:.2f} TB/s", flush=True)
    rows: list[dict[str, object]] = []
    for name in args.models:
        model = random_model(name)
        for batch in BATCHES:
            device, whole, plain = ours(model, batch)
            torch.cuda.empty_cache()
            floor = step_bytes(model, batch, 1500) / copy / 1e9
            row: dict[str, object] = {
                "model": name,
                "batch": batch,
                "device_ms": round(device, 3),
                "with_host_ms": round(whole, 3),
                "no_graph_ms": round(plain, 3),
                "floor_ms": round(floor, 3),
                "of_copy": round(floor / device, 3),
            }
            for peer, run in PEERS.items():
                with no_cudnn_attention():
                    took = None if args.no_peers else run(model, batch)
                torch.cuda.empty_cache()
                if took is not None:
                    row[f"{peer}_ms"] = round(took, 3)
            rows.append(row)
            print(row, flush=True)
        del model
        torch.cuda.empty_cache()
    return report(
        {
            "benchmark": "gpu_decoder",
            "gemm_tflops": round(gemm),
            "copy_tbs": round(copy, 2),
            "rows": rows,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
