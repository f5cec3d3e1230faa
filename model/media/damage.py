"""Missing audio: noticed while a track is decoded, and reported in one sentence. Loads no torch.

FFmpeg goes on past damage without a word. Three things give it away: packets that cannot be decoded, time
stamps that leave a gap, and a header that says more than is there. What none of them shows (other samples
in a WAV, most changed bits in MP3, AAC and Opus) cannot be told from sound.
"""

from __future__ import annotations

import math

from av.audio.frame import AudioFrame
from av.container import InputContainer

from .headers import EXACT, Raw, declared_seconds, promised_seconds, stops_inside_page

__all__ = ["Damage"]

# Seconds between the end of one frame and the stamp of the next, above which something is missing. FLAC counts
# samples; Vorbis may be off by half a block; recorders may leave out silence, of which Opus skips at most 0.4 s
# at once. Other containers stamp packets as they come, or start again, or are counted by FFmpeg itself.
_GAPS = {"flac": 0.001, "ogg": 0.1, "matroska,webm": 0.5, "mov,mp4,m4a,3gp,3g2,mj2": 0.5}
_SAME_PLACE = 1.0  # seconds; places nearer to each other are one
_NAMED_PLACES = 3
_EXACT_SECONDS, _USUAL_SECONDS = 0.05, 0.5  # that may be missing at the end: codecs pad, and round


class Damage:
    """What is missing in a track, by what was noted of it while it was decoded, in order.

    Args:
        container: as it was opened, before anything was decoded.
        raw: the file's own bytes, where they can be read; without them less is noticed.
    """

    def __init__(self, container: InputContainer, raw: Raw | None = None) -> None:
        self._format = container.format.name
        self._gap = _GAPS.get(self._format, math.inf)
        self._declared = declared_seconds(container)
        self._raw = raw
        self._seconds = 0.0  # decoded
        self._due: float | None = None  # the stamp of the next frame
        self._places: list[float] = []  # in seconds of what was decoded
        self._ended = False

    @property
    def begun(self) -> bool:
        """Whether anything was decoded."""
        return self._seconds > 0

    def note_failure(self) -> None:
        """Note that a packet could not be decoded, or read."""
        if not self._places or self._seconds - self._places[-1] > _SAME_PLACE:
            self._places.append(self._seconds)

    def note_frame(self, frame: AudioFrame, stamp: float | None) -> None:
        """Note the next frame that was decoded, and the second that it is stamped with, if any."""
        if not frame.sample_rate:
            return
        length = frame.samples / frame.sample_rate
        if stamp is not None:
            if self._due is not None and stamp - self._due > self._gap:
                self.note_failure()
            self._due = stamp + length
        elif self._format == "flac":
            self.note_failure()  # FFmpeg made something of it, but could not find its place
        elif self._due is not None:
            self._due += length
        self._seconds += length

    def note_end(self) -> None:
        """Note that everything there is was decoded."""
        self._ended = True

    def report(self) -> str | None:
        """Return what is missing, to follow the file's name: ``ends after 3.2 s; …``. None: nothing that shows."""
        promised, reached = None, self._seconds
        torn = False
        if self._ended:
            promised = promised_seconds(self._format, self._declared, self._raw)
            torn = stops_inside_page(self._format, self._raw)
        spare = _EXACT_SECONDS if self._format in EXACT else _USUAL_SECONDS
        short = promised is not None and promised - reached > spare
        # at the very end it is the cut itself; or what stands behind the sound in an MP3: tags, zeros; or
        # the frame in which a live stream was stopped
        tail = short or torn or self._format == "mp3" or not self._ended
        places = [place for place in self._places if not tail or place < reached]
        if places:
            text = f"is damaged near {_listed(places)}; words may be missing there"
            told = short and f"{promised:.1f}" != f"{reached:.1f}"
            return f"{text}: {reached:.1f} s of {promised:.1f} s were read" if told else text
        if short:
            return (
                f"ends after {reached:.1f} s; its header says {promised:.1f} s: the rest is missing"
            )
        if torn:
            return f"ends after {reached:.1f} s inside a page: what followed is missing"
        return None


def _listed(places: list[float]) -> str:
    named = ", ".join(f"{place:.1f} s" for place in places[:_NAMED_PLACES])
    more = len(places) - _NAMED_PLACES
    return named if more <= 0 else f"{named} and in {more} more place{'s' if more > 1 else ''}"
