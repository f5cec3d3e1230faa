"""Errors of the model layer. Each text is one sentence: what was wrong, and what to do.

::

    WhisperStreamError
    └── ModelError
        ├── UnknownModelError       no published model has that name
        ├── WeightsError            a weights file is missing, damaged, or not a Whisper model
        ├── DownloadError           a checkpoint could not be fetched or stored
        ├── AudioError              audio could not be read
        └── DecodingOptionsError    decoding options that make no sense; names the field
"""

from __future__ import annotations

from .. import WhisperStreamError

__all__ = [
    "AudioError",
    "DecodingOptionsError",
    "DownloadError",
    "ModelError",
    "UnknownModelError",
    "WeightsError",
]


class ModelError(WhisperStreamError):
    """Base of every error of the model layer."""


class UnknownModelError(ModelError):
    """Raised when a model name is not a published one and not a path either."""


class WeightsError(ModelError):
    """Raised when weights are missing, truncated, of the wrong hash, or not those of a Whisper."""


class DownloadError(ModelError):
    """Raised when a checkpoint cannot be fetched, verified or stored."""


class AudioError(ModelError):
    """Raised when a file or array cannot be read as audio."""


class DecodingOptionsError(ModelError):
    """Raised when a decoding option, or a combination of them, makes no sense."""
