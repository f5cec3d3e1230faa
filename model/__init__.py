"""Whisper: audio in, text with times out.

The public names below are loaded when first used, so that what needs no network loads no torch::

    from whisper_stream.model import load_model, transcribe

    model = load_model("base")
    print(transcribe(model, "speech.flac")["text"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audio import load_audio, pad_or_trim
    from .decoding import DecodingOptions, DecodingResult, decode, detect_language
    from .dims import ModelDimensions
    from .loading import load_model
    from .mel import log_mel_spectrogram
    from .registry import available_models
    from .transcription import transcribe
    from .whisper import Whisper

__all__ = [
    "DecodingOptions",
    "DecodingResult",
    "ModelDimensions",
    "Whisper",
    "available_models",
    "decode",
    "detect_language",
    "load_audio",
    "load_model",
    "log_mel_spectrogram",
    "pad_or_trim",
    "transcribe",
]

_HOMES = {
    "DecodingOptions": "decoding_options",
    "DecodingResult": "decoding_task",
    "ModelDimensions": "dims",
    "Whisper": "whisper",
    "available_models": "registry",
    "decode": "decoding",
    "detect_language": "detection",
    "load_audio": "audio",
    "load_model": "loading",
    "log_mel_spectrogram": "mel",
    "pad_or_trim": "audio",
    "transcribe": "transcription",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
