"""Which language a stream is in: given, or looked for until it is clear, and then kept."""

from __future__ import annotations

from ..config import StreamConfig
from ..events import Event, LanguageDetected
from ..jobs import DecodeResult
from .window import Window

__all__ = ["LanguageTracker"]

_CONFIDENCE = 0.5  # a detected language at least this likely is kept
_SWITCH = 0.8  # and given up, at a new utterance, for another as likely as this


class LanguageTracker:
    """``code`` is None while it is not known."""

    def __init__(self, config: StreamConfig) -> None:
        self._given = config.language
        self.code = config.language

    @property
    def name(self) -> str:
        """For a segment, which needs one."""
        return self.code or "en"

    def configure(self, config: StreamConfig) -> None:
        if config.language != self._given:
            self._given = self.code = config.language

    def switch_above(self, *, fresh: bool) -> float | None:
        """How likely another language must be to be taken. None: no other is asked for.

        ``fresh``: an utterance begins. Only then may a language that is kept be given up.
        """
        doubted = fresh and self._given is None and self.code is not None
        return _SWITCH if doubted else None

    def learn(self, result: DecodeResult, window: Window) -> list[Event]:
        """Takes what was detected in ``window``, and tells it where it is new."""
        probability = result.language_probability
        if self._given is not None or probability is None:
            return []
        if self.code is None and probability < _CONFIDENCE and not window.endpoint:
            return []
        if result.language == self.code:
            return []
        self.code = result.language
        return [LanguageDetected(language=self.code, probability=probability, sample=window.end)]
