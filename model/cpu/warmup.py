"""One decode before any stream needs one, so that the kernels are compiled by then."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ..whisper.network import Whisper

__all__ = ["COMPILING", "warm_up"]

COMPILING = "the decoder is being compiled for this processor, which only the first run does, or is slow to load"

_PATIENCE = 2.0  # seconds before ``on_slow``


@torch.inference_mode()
def warm_up(model: Whisper, on_slow: Callable[[], None]) -> None:
    """Run one decoder step of ``model``; on CPU the first one ever compiles the kernels for this processor.

    ``on_slow`` is called from another thread when that takes longer than two seconds.
    """
    timer = threading.Timer(_PATIENCE, on_slow)
    timer.daemon = True
    timer.start()
    try:
        dims, decoder = model.dims, model.decoder
        features = torch.zeros(1, 2, dims.n_audio_state, device=model.device, dtype=model.dtype)
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        decoder(
            token,
            torch.zeros_like(token),
            decoder.new_cache(1),
            decoder.audio_cache(features),
            start=0,
        )
    finally:
        timer.cancel()
