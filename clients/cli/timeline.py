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
from collections.abc import Sequence
from pathlib import Path

import av
import msgspec
import numpy as np
from numpy.typing import NDArray

from ...server.protocol import messages as wire
from ...server.protocol.word_times import StreamTimes, TimedWord, delays
from ..errors import OutputError
from ..sdk.transcript import TextFile
from ..sources.files import SAMPLE_RATE

__all__ = ["Timeline"]

_FILES = Path(__file__).parents[1] / "timeline_page"
_PEAKS_PER_SECOND = 100


class Timeline:
    """A page of one stream: takes the audio and the messages as they pass, and is written at the end.

    Args:
        path: the page, an HTML file.
        name: the recording's, for the page's title.

    Raises:
        OutputError: the page's file cannot be written.
    """

    def __init__(self, path: Path, name: str) -> None:
        if path.suffix.lower() not in (".html", ".htm") and not path.is_dir():
            raise OutputError(f"--timeline {path}: the page is HTML; give it a name in .html")
        self._file = TextFile(path, flag="--timeline")
        self._name = name
        self._pcm = bytearray()
        self._times = StreamTimes()
        self._model = ""

    def add_audio(self, pcm: bytes) -> None:
        """Add audio that is sent: s16le mono at 16 kHz."""
        self._pcm += pcm

    def add_message(self, message: wire.ServerMessage) -> None:
        """Add a message of the server, at the time of the audio sent until now."""
        self._times.on_message(message, self._seconds())
        if isinstance(message, wire.Ready):
            self._model = message.model

    def write(self) -> None:
        """Write the page; raises OutputError."""
        self._file.write(self._page())

    def _seconds(self) -> float:
        return len(self._pcm) / 2 / SAMPLE_RATE

    def _page(self) -> str:
        samples = np.frombuffer(bytes(self._pcm), np.int16)
        words = list(self._times.words)
        facts = {
            "duration": round(self._seconds(), 3),
            "peaksPerSecond": _PEAKS_PER_SECOND,
            "peaks": _peaks(samples),
            "speech": [
                {"start": start, "end": end} for start, end in self._times.speech(self._seconds())
            ],
            "words": msgspec.to_builtins(words),
        }
        return _render(
            title=self._name,
            summary=self._summary(words),
            facts=json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
            audio=_mp3(samples),
        )

    def _summary(self, words: Sequence[TimedWord]) -> dict[str, str]:
        summary = {"Length": f"{self._seconds():.1f} s", "Model": self._model or "?"}
        if self._times.language:
            summary["Language"] = self._times.language
        return summary | {"Words": str(len(words))} | delays(words)


def _peaks(samples: NDArray[np.int16]) -> list[int]:
    """Return the loudest sample of each hundredth of a second, 0 to 127."""
    step = SAMPLE_RATE // _PEAKS_PER_SECOND
    padded = np.pad(np.abs(samples.astype(np.int32)), (0, -samples.size % step))
    peaks: list[int] = (padded.reshape(-1, step).max(axis=1, initial=0) * 127 // 32_768).tolist()
    return peaks


def _mp3(samples: NDArray[np.int16]) -> str:
    """Return a data address with MP3, which every browser plays; an hour takes about 15 MB."""
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
