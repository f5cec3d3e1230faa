"""``--timeline``: one self-contained page that shows what happened in a stream, and when.

Waveform, where speech was heard, each word at its time, when it was first shown and when committed,
with the audio to listen to. Moments are seconds of audio sent until then, so they compare with the
times of words, whatever the speed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from ..server import wire
from .source import SAMPLE_RATE
from .text_file import TextFile

__all__ = ["Timeline"]

_FILES = Path(__file__).parent / "timeline_page"
_PEAKS_PER_SECOND = 100
_SAME_SECONDS = 0.4  # between the middles of a word's first and final times


@dataclass(frozen=True, slots=True)
class _Shown:
    """A word of some message, and how much audio had been sent when it came."""

    word: wire.Word
    at: float


class Timeline:
    """Takes in what is sent and received; at the end writes the page.

    Raises:
        OutputError: the page's file cannot be written.
    """

    def __init__(self, path: Path, name: str) -> None:
        """``name`` is that of the recording, for the page's title."""
        self._file = TextFile(path, flag="--timeline")
        self._name = name
        self._pcm = bytearray()
        self._shown: list[_Shown] = []
        self._committed: list[_Shown] = []
        self._speech: list[list[float]] = []  # start and end
        self._model = ""
        self._language = ""

    def sent(self, pcm: bytes) -> None:
        """Audio went out: s16le mono at 16 kHz."""
        self._pcm += pcm

    def received(self, message: wire.ServerMessage) -> None:
        at = self._seconds()
        match message:
            case wire.Ready():
                self._model, self._language = message.model, message.language or ""
            case wire.Language():
                self._language = message.language
            case wire.SpeechStarted():
                self._speech.append([message.time, message.time])
            case wire.SpeechStopped() if self._speech:
                self._speech[-1][1] = message.time
            case wire.Partial():
                self._shown += [_Shown(word, at) for word in message.words]
            case wire.Commit():
                self._committed += [_Shown(word, at) for word in message.words]

    def write(self) -> None:
        """Write the page."""
        self._file.write(self._page())

    def _seconds(self) -> float:
        return len(self._pcm) / 2 / SAMPLE_RATE

    def _words(self) -> list[dict[str, Any]]:
        words, first = [], 0
        for each in self._committed:
            word = each.word
            # Partials come in order of time, and so do commits: no search begins at the beginning.
            while first < len(self._shown) and self._shown[first].at < word.start - 1:
                first += 1
            shown = next((old.at for old in self._shown[first:] if _same(old.word, word)), each.at)
            words.append(
                {
                    "text": word.text,
                    "start": word.start,
                    "end": word.end,
                    "probability": word.probability,
                    "shown": round(min(shown, each.at), 3),
                    "committed": round(each.at, 3),
                }
            )
        return words

    def _page(self) -> str:
        samples = np.frombuffer(bytes(self._pcm), np.int16)
        words = self._words()
        facts = {
            "duration": round(self._seconds(), 3),
            "peaksPerSecond": _PEAKS_PER_SECOND,
            "peaks": _peaks(samples),
            "speech": [
                {"start": start, "end": end if end > start else self._seconds()}
                for start, end in self._speech
            ],
            "words": words,
        }
        return _render(
            title=self._name,
            summary=self._summary(words),
            facts=json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
            audio=_mp3(samples),
        )

    def _summary(self, words: list[dict[str, Any]]) -> dict[str, str]:
        summary = {"Length": f"{self._seconds():.1f} s", "Model": self._model or "?"}
        if self._language:
            summary["Language"] = self._language
        summary["Words"] = str(len(words))
        if words:
            shown = [max(0.0, word["shown"] - word["end"]) for word in words]
            committed = [max(0.0, word["committed"] - word["end"]) for word in words]
            summary["Shown after"] = _spread(shown)
            summary["Committed after"] = _spread(committed)
        return summary


def _same(one: wire.Word, other: wire.Word) -> bool:
    middles = abs((one.start + one.end) - (other.start + other.end)) / 2
    return middles <= _SAME_SECONDS and _letters(one.text) == _letters(other.text)


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _spread(seconds: list[float]) -> str:
    middle, late = np.quantile(seconds, [0.5, 0.95])
    return f"{middle:.2f} s (95 %: {late:.2f} s)"


def _peaks(samples: NDArray[np.int16]) -> list[int]:
    """The loudest sample of each hundredth of a second, 0 to 127."""
    step = SAMPLE_RATE // _PEAKS_PER_SECOND
    padded = np.pad(np.abs(samples.astype(np.int32)), (0, -samples.size % step))
    peaks: list[int] = (padded.reshape(-1, step).max(axis=1, initial=0) * 127 // 32_768).tolist()
    return peaks


def _mp3(samples: NDArray[np.int16]) -> str:
    """As a data address: every browser plays MP3, and an hour takes some 15 MB."""
    buffer = io.BytesIO()
    with av.open(buffer, mode="w", format="mp3") as container:
        stream = container.add_stream("mp3", rate=SAMPLE_RATE)
        stream.bit_rate = 32_000
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        resampler = av.AudioResampler(format="s16p", layout="mono", rate=SAMPLE_RATE)
        fifo = av.AudioFifo()
        for converted in resampler.resample(frame) if samples.size else []:
            fifo.write(converted)
        while (piece := fifo.read(1152, partial=True)) is not None:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return "data:audio/mpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _render(*, title: str, summary: dict[str, str], facts: str, audio: str) -> str:
    style = (_FILES / "page.css").read_text()
    script = (_FILES / "page.js").read_text()
    policy = (
        f"default-src 'none'; media-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    )
    listed = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in summary.items()
    )
    values = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(title),
        "SUMMARY": listed,
        "AUDIO": audio,
        "STYLE": style,
        "FACTS": facts.replace("<", "\\u003c"),  # no word shall end the element
        "SCRIPT": script,
    }
    parts = (_FILES / "page.html").read_text().split("%")
    return "".join(values[part] if index % 2 else part for index, part in enumerate(parts))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
