"""The language of a stream: given by the client, or detected until it is clear, and then kept."""

from __future__ import annotations

from ..config import StreamConfig
from ..events import Event, LanguageDetected
from ..jobs import DecodeResult
from .window import Window

__all__ = ["LanguageTracker"]

_CONFIDENCE = 0.5  # a detected language at least this likely is kept
_SWITCH = 0.8  # and given up, at a new utterance, for another as likely as this


class LanguageTracker:
    """Keeps the language that a stream's jobs are decoded in.

    Attributes:
        code: its ISO code; None while it is not known.
    """

    def __init__(self, config: StreamConfig) -> None:
        self._given = config.language
        self.code = config.language

    @property
    def segment_code(self) -> str:
        """The language for a segment, which needs one: English while none is known."""
        return self.code or "en"

    def configure(self, config: StreamConfig) -> None:
        """Take the client's choice anew, where it has changed."""
        if config.language != self._given:
            self._given = self.code = config.language

    def get_switch_probability(self, *, fresh: bool) -> float | None:
        """Return the probability from which another language is taken; None: none is looked for.

        Args:
            fresh: an utterance begins. Only then may a language that is kept be given up.
        """
        doubted = fresh and self._given is None and self.code is not None
        return _SWITCH if doubted else None

    def learn(self, result: DecodeResult, window: Window) -> list[Event]:
        """Take the language detected in ``window``; return an event where it is new."""
        probability = result.language_probability
        if self._given is not None or probability is None:
            return []
        if self.code is None and probability < _CONFIDENCE and not window.endpoint:
            return []
        if result.language == self.code:
            return []
        self.code = result.language
        return [LanguageDetected(language=self.code, probability=probability, sample=window.end)]
