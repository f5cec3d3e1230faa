"""whisper-stream: speech becomes text while it is being spoken, on your own machine."""

__version__ = "0.1.0"

__all__ = ["WhisperStreamError", "__version__"]


class WhisperStreamError(Exception):
    """Base of every error a user may see.

    The text of such an error is one sentence that names what was wrong and what to do.
    Command lines print it and exit non-zero; the server sends it as an ``error`` message.
    """
