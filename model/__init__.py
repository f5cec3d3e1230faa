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
    from .decoding.task import DecodingOptions, DecodingResult, decode, detect_language
    from .media.audio import load_audio, pad_or_trim
    from .transcription.transcribe import transcribe
    from .weights.loading import load_model
    from .weights.registry import available_models
    from .whisper.dims import ModelDimensions
    from .whisper.mel import log_mel_spectrogram
    from .whisper.network import Whisper

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
    "DecodingOptions": "decoding.options",
    "DecodingResult": "decoding.task",
    "ModelDimensions": "whisper.dims",
    "Whisper": "whisper.network",
    "available_models": "weights.registry",
    "decode": "decoding.task",
    "detect_language": "decoding.task",
    "load_audio": "media.audio",
    "load_model": "weights.loading",
    "log_mel_spectrogram": "whisper.mel",
    "pad_or_trim": "media.audio",
    "transcribe": "transcription.transcribe",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
