"""The encoder on a GPU: milliseconds a window, beside what the GPU can do, and beside other implementations.

    python benchmarks/gpu/encoder.py --models large-v3-turbo large-v3

Peers are measured where they are installed (transformers, openai-whisper), in the same run; weights are
random. Prints a line for every model, length and batch, and, last, one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from rig import (
    ceilings,
    encoder_flops,
    milliseconds,
    parser,
    random_model,
    report,
    transformers_config,
)
from whisper_stream.model.gpu.encoder import PackedEncoder
from whisper_stream.model.whisper.network import Whisper

CASES = ((30, 1), (30, 32), (10, 1), (10, 32), (5, 64))  # seconds, windows


def transformers_encoder(model: Whisper) -> Callable[[torch.Tensor], object] | None:
    try:
        from transformers.models.whisper.modeling_whisper import WhisperEncoder
    except ImportError:
        return None
    config = transformers_config(model, attn_implementation="sdpa")
    encoder = WhisperEncoder(config).to("cuda", model.dtype).eval()
    return lambda mel: encoder(mel)


def openai_encoder(model: Whisper) -> Callable[[torch.Tensor], object] | None:
    try:
        from whisper.model import AudioEncoder
    except ImportError:
        return None
    dims = model.dims
    encoder = AudioEncoder(
        dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer
    )
    encoder = encoder.to("cuda").eval()  # its weights stay float32 and are cast as they are used
    return lambda mel: encoder(mel)


@torch.inference_mode()
def main() -> int:
    args = parser(__doc__).parse_args()
    gemm, copy = ceilings()
    print(f"ceilings: {gemm:.0f} TFLOP/s, copy {copy:.2f} TB/s", flush=True)
    rows: list[dict[str, object]] = []
    for name in args.models:
        model = random_model(name)
        ours = PackedEncoder(model)
        peers = {
            "transformers": transformers_encoder(model),
            "openai-whisper": openai_encoder(model),
        }
        for seconds, batch in CASES:
            positions = seconds * 50
            mel = torch.randn(
                batch, model.dims.n_mels, 2 * positions, device="cuda", dtype=model.dtype
            )
            took = milliseconds(ours.encode, mel, [positions] * batch)
            mixed = [positions - 50 * (row % 3) for row in range(batch)]
            packed = milliseconds(ours.encode, mel, mixed) if batch > 1 else None
            plain = milliseconds(model.embed_audio, mel)
            rate = encoder_flops(model, positions) * batch / took / 1e9
            work = sum(encoder_flops(model, one) for one in mixed)
            row: dict[str, object] = {
                "model": name,
                "seconds": seconds,
                "batch": batch,
                "ms_each": round(took / batch, 3),
                "tflops": round(rate),
                "of_gemm": round(rate / gemm, 3),
                "mixed_lengths_of_gemm": packed and round(work / packed / 1e9 / gemm, 3),
                "plain_ms_each": round(plain / batch, 3),
            }
            for peer, run in peers.items():
                if run is not None and seconds == 30:  # they know no other length
                    row[peer] = round(milliseconds(run, mel) / batch, 3)
            rows.append(row)
            print(row, flush=True)
        torch.cuda.empty_cache()
    return report(
        {
            "benchmark": "gpu_encoder",
            "gemm_tflops": round(gemm),
            "copy_tbs": round(copy, 2),
            "rows": rows,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
