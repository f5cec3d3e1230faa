"""Decoding of containers while they arrive: WebM, Ogg, MP3, WAV, FLAC, MP4, AAC.

FFmpeg reads from a file that blocks, so each stream has a thread that lends it one. ``push`` hands the
thread bytes and waits until it asks for more, or holds enough: what comes out depends on the bytes
alone, never on timing, and neither the bytes nor the sound waiting here grow without bound.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from ...model.errors import AudioError
from ...model.media.damage import Damage
from ...model.media.decode import INT16_SCALE, AudioTrack, NoSoundError, TrackLimits, open_track
from ..config import SAMPLE_RATE
from ..errors import IngestError
from ..events import StreamWarning

__all__ = ["CONTAINERS", "ContainerIngest"]

# FFmpeg's name of the demuxer. It is never left to guess: there are hundreds of them.
CONTAINERS = {
    "webm": "matroska",
    "ogg": "ogg",
    "mp3": "mp3",
    "wav": "wav",
    "flac": "flac",
    "mp4": "mp4",
    "aac": "aac",
}
_LIMITS = TrackLimits(
    codecs=frozenset({"opus", "vorbis", "mp3", "mp3float", "flac", "aac", "alac"}),
    codec_prefix="pcm_",
    min_rate=8_000,
    max_rate=192_000,
    max_channels=8,
    max_frame_samples=1 << 20,
    max_damaged_packets=100,
)
_ENOUGH = 5 * SAMPLE_RATE  # samples decoded ahead; then the decoder waits
_READ_BYTES = 4096
_OPTIONS = {
    # What is there is decoded at once, not looked at for seconds.
    "probesize": "4096",
    "analyzeduration": "0",
}


class _Abandoned(Exception):
    """The stream was closed while its decoder waited."""


class _Pipe:
    """The file that FFmpeg reads, and the samples decoded from it. Two threads take turns."""

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.data = b""
        self.ended = False  # no more data will come
        self.abandoned = False
        self.starved = False  # the decoder waits for data
        self.done = False  # the decoder has ended
        self.error: str | None = None
        self.damage: Damage | None = None
        self.sound: list[NDArray[np.float32]] = []
        self.count = 0  # samples in it

    def read(self, size: int = -1) -> bytes:
        """Return at least one byte, or none at the end. FFmpeg calls it, and waits."""
        with self.turn:
            while not self.data and not self.ended and not self.abandoned:
                self.starved = True
                self.turn.notify_all()
                self.turn.wait()
            if self.abandoned:
                return b""
            piece, self.data = self.data[:size], self.data[size:]
            return piece

    def put(self, samples: NDArray[np.float32]) -> None:
        """Keep ``samples``, [S], and wait while enough are there. Raises _Abandoned once the stream is closed."""
        with self.turn:
            self.sound.append(samples)
            self.count += len(samples)
            while self.count >= _ENOUGH and not self.abandoned:
                self.turn.notify_all()
                self.turn.wait()
            if self.abandoned:
                raise _Abandoned


class ContainerIngest:
    """Converter of a container's bytes; see ``Ingest``. After an ``error`` it takes no more.

    Raises:
        IngestError: ``container`` is not one of ``CONTAINERS``.
    """

    def __init__(self, container: str) -> None:
        if container not in CONTAINERS:
            raise IngestError(
                f"encoding {container!r} is not supported: use one of {', '.join(CONTAINERS)}"
            )
        self._name = container
        self._pipe = _Pipe()
        self._thread: threading.Thread | None = None
        self._samples_out = 0
        self._warned = False

    @property
    def samples_in(self) -> int:
        """Samples decoded, at 16 kHz: the client does not count samples."""
        return self._samples_out

    @property
    def samples_out(self) -> int:
        """Samples returned so far, at 16 kHz."""
        return self._samples_out

    @property
    def has_more(self) -> bool:
        """True while ``more`` has samples that need no further bytes."""
        return self._pipe.count > 0

    @property
    def error(self) -> str | None:
        """The reason why the bytes cannot be decoded from here on, in one sentence; None while they can."""
        return self._pipe.error

    def take_warning(self) -> StreamWarning | None:
        """Return a warning about the first damage, once. An early end is none: a client may stop at any time."""
        found = self._pipe.damage.report() if self._pipe.damage and not self._warned else None
        if found is None:
            return None
        self._warned = True
        return StreamWarning(code="damaged_audio", message=f"the {self._name} {found}")

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Take the next bytes; return samples [S], about five seconds at most: ``more`` has the others."""
        if not self._pipe.done:
            with self._pipe.turn:
                self._pipe.data += data
        return self.more()

    def finish(self) -> NDArray[np.float32]:
        """Take the end of the bytes; return samples as ``push`` does."""
        with self._pipe.turn:
            self._pipe.ended = True
        return self.more()

    def more(self) -> NDArray[np.float32]:
        """Let the decoder go on as far as it can; return the samples [S] that it has."""
        pipe = self._pipe
        if self._thread is None:
            self._thread = threading.Thread(target=self._decode, name="container", daemon=True)
            self._thread.start()
        with pipe.turn:
            if pipe.count < _ENOUGH:
                self._wait()
            sound, pipe.sound, pipe.count = pipe.sound, [], 0
            if not pipe.done:
                self._wait()  # so that has_more depends on the bytes alone
        out = np.concatenate(sound) if sound else np.zeros(0, np.float32)
        self._samples_out += len(out)
        return out

    def close(self) -> None:
        """End the thread. Samples that were not returned are dropped."""
        with self._pipe.turn:
            self._pipe.abandoned = True
            self._pipe.turn.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wait(self) -> None:
        """Wait until the decoder has ended, holds enough, or has read all bytes. The caller holds ``turn``."""
        pipe = self._pipe
        pipe.starved = False
        pipe.turn.notify_all()
        while not (pipe.done or pipe.count >= _ENOUGH or (pipe.starved and not pipe.data)):
            pipe.turn.wait()

    # In the thread

    def _decode(self) -> None:
        pipe = self._pipe
        try:
            with self._open() as track:
                pipe.damage = track.damage
                for block in track.blocks(SAMPLE_RATE):
                    pipe.put(block.astype(np.float32) * INT16_SCALE)
                if track.broken_off and not pipe.ended:  # what is still to come is not heard
                    pipe.error = f"the audio {self._not_audio('')}"
        except _Abandoned:
            pass
        except NoSoundError:
            pipe.error = f"the audio is not {self._name}, or holds no sound"
        except AudioError as error:
            pipe.error = str(error)
        except Exception:  # noqa: BLE001 - hostile bytes end this stream, and no other
            pipe.error = f"the audio {self._not_audio('')}"
        finally:
            with pipe.turn:
                pipe.done = True
                pipe.data = b""
                pipe.turn.notify_all()

    def _open(self) -> AudioTrack:
        return open_track(
            self._pipe,
            "the audio",
            live=True,
            limits=_LIMITS,
            explain=self._not_audio,
            format=CONTAINERS[self._name],
            buffer_size=_READ_BYTES,
            container_options=_OPTIONS,
        )

    def _not_audio(self, reason: str) -> str:
        return f"is not {self._name}, or it is damaged"
