"""Coverage: every stretch of voice is explained by words, or decoded again on its own.

A decoder that is forced to begin with the committed words may answer that the text ends there, with great
confidence, although somebody goes on speaking. Such an answer is not believed: the voice after the last
word is decoded once more, alone, without the words before it.
"""

from __future__ import annotations

from ..audio.voice_map import VoiceMap
from ..config import SAMPLE_RATE, StreamConfig
from ..events import Event, StreamWarning
from ..jobs import DecodeResult
from .guards import is_no_speech, repeats_itself

__all__ = ["CoverageTracker"]

_WORD_END = SAMPLE_RATE // 5  # samples of voice after a word's end that may still be the word
_EDGE = 2 * SAMPLE_RATE // 5  # samples before the end of an update that may yet get their words
_PREROLL = round(0.3 * SAMPLE_RATE)  # samples before the voice that are decoded with it
_PAUSE_UPDATES = 4  # after a trial that found nothing
_LEAST_REPORTED = 0.5  # seconds of voice
_NO_SPEECH = 0.5  # probability above which voice decoded on its own is none
_LAST_NO_SPEECH = 0.2  # and at the end of an utterance


class CoverageTracker:
    """Looks for voice that no word explains, and says when it is to be decoded on its own.

    Args:
        config: options of the stream.
        voice: the voiced stretches of the stream.
    """

    def __init__(self, config: StreamConfig, voice: VoiceMap) -> None:
        self._config = config
        self._voice = voice
        self._updates = 0  # in a row that left voice without words; negative: after a vain trial

    def measure(self, heard: int, end: int) -> float:
        """Return the seconds of voice between the end of the last word, ``heard``, and sample ``end``."""
        return self._voice.count(heard + _WORD_END, end) / SAMPLE_RATE

    def add_update(self, heard: int, end: int) -> bool:
        """Take the end of the last word and the end of the audio of an update.

        Returns:
            Whether the voice between them should be decoded on its own: the text has stood still for some
            updates while somebody spoke.
        """
        if self.measure(heard, end - _EDGE) < self._config.unheard_voice:
            self._updates = min(self._updates, 0)
            return False
        self._updates += 1
        return self._updates >= self._config.unheard_updates

    def end_trial(self, *, believed: bool) -> None:
        """Take the end of such a decode; where its text was not ``believed``, the next one has to wait."""
        self._updates = 0 if believed else -_PAUSE_UPDATES

    def reset(self) -> None:
        """Begin anew, with another utterance."""
        self._updates = 0

    def find_start(self, heard: int) -> int:
        """Return where the voice after sample ``heard`` begins, with a little audio before it."""
        onset = self._voice.find_onset(heard + _WORD_END // 2)
        return heard if onset is None else max(heard, onset - _PREROLL)

    def report(self, result: DecodeResult, start: int, end: int) -> list[Event]:
        """Return a warning of voice in samples ``start``..``end`` that gave no words; none for noise.

        Args:
            result: of the decode of this voice on its own.
        """
        seconds = self._voice.count(start, end) / SAMPLE_RATE
        if seconds < _LEAST_REPORTED or result.no_speech_prob > _NO_SPEECH or is_no_speech(result):
            return []
        message = (
            f"somebody seems to speak from {start / SAMPLE_RATE:.1f} to {end / SAMPLE_RATE:.1f} s, "
            "but no words could be made of it"
        )
        return [StreamWarning(code="unclear_speech", message=message)]

    def believes(self, result: DecodeResult, *, last: bool) -> bool:
        """Return whether the text of voice that was decoded on its own is trusted.

        Args:
            last: it is the end of an utterance: what is left there is breath and noise, as often as not.
        """
        if repeats_itself(result) or is_no_speech(result):
            return False
        if last:
            sure = result.avg_logprob >= self._config.last_trial_logprob
            return sure and result.no_speech_prob <= _LAST_NO_SPEECH
        sure = result.avg_logprob >= self._config.trial_logprob
        return sure and result.no_speech_prob <= _NO_SPEECH
