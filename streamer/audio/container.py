"""Containers and codecs, decoded while they arrive: WebM, Ogg, MP3, WAV, FLAC, MP4, AAC.

FFmpeg reads from a file that blocks, so each stream has a thread that lends it one. ``push`` hands the
thread bytes and waits until it asks for more, or holds enough: what comes out depends on the bytes
alone, never on timing, and neither the bytes nor the sound waiting here grow without bound.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from numpy.typing import NDArray

from ...model.media.damage import Damage
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
_CODECS = {"opus", "vorbis", "mp3", "mp3float", "flac", "aac", "alac"}  # and pcm_*
_ENOUGH = 5 * SAMPLE_RATE  # samples decoded ahead; then the decoder waits
_MOST_CHANNELS = 8
_RATES = (8_000, 192_000)
_MOST_FRAME = 1 << 20  # samples of one frame
_READ_BYTES = 4096
_OPTIONS = {
    # What is there is decoded at once, not looked at for seconds.
    "probesize": "4096",
    "analyzeduration": "0",
    # A file that names other files must not make us open them.
    "protocol_whitelist": "none",
}


class _Abandoned(Exception):
    pass


class _Pipe:
    """The file FFmpeg reads, and the sound that comes of it. Two threads take turns."""

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
        """Called by FFmpeg: at least one byte, or none at the end."""
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
        """Called by the decoder; waits while enough is there."""
        with self.turn:
            self.sound.append(samples)
            self.count += len(samples)
            while self.count >= _ENOUGH and not self.abandoned:
                self.turn.notify_all()
                self.turn.wait()
            if self.abandoned:
                raise _Abandoned


class ContainerIngest:
    """Decodes one container, cut anywhere, to 16 kHz mono.

    After an error it takes no more: ``error`` says what was wrong, in one sentence.

    Raises IngestError for a container outside ``CONTAINERS``.
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
        return self._samples_out

    @property
    def has_more(self) -> bool:
        """Whether ``more`` has sound to give that needs no further bytes."""
        return self._pipe.count > 0

    @property
    def error(self) -> str | None:
        return self._pipe.error

    def take_warning(self) -> StreamWarning | None:
        """Of the first damage. That bytes end early is none: whoever sends them may stop."""
        found = self._pipe.damage.report() if self._pipe.damage and not self._warned else None
        if found is None:
            return None
        self._warned = True
        return StreamWarning(code="damaged_audio", message=f"the {self._name} {found}")

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Take bytes and return sound [n], at most about five seconds; ``more`` gives the rest."""
        if not self._pipe.done:
            with self._pipe.turn:
                self._pipe.data += data
        return self.more()

    def finish(self) -> NDArray[np.float32]:
        """No more bytes will come; as ``push``."""
        with self._pipe.turn:
            self._pipe.ended = True
        return self.more()

    def more(self) -> NDArray[np.float32]:
        """Let the decoder go on as far as it can, and return what it has, [n]."""
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
        """End the thread. Sound that is left is dropped."""
        with self._pipe.turn:
            self._pipe.abandoned = True
            self._pipe.turn.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wait(self) -> None:
        """Until the decoder has ended, holds enough, or has read everything. Holds ``turn``."""
        pipe = self._pipe
        pipe.starved = False
        pipe.turn.notify_all()
        while not (pipe.done or pipe.count >= _ENOUGH or (pipe.starved and not pipe.data)):
            pipe.turn.wait()

    # In the thread

    def _decode(self) -> None:
        pipe = self._pipe
        try:
            heard = False
            for samples in self._sound():
                heard = True
                pipe.put(samples)
            if not heard:
                pipe.error = f"the audio is not {self._name}, or holds no sound"
        except _Abandoned:
            pass
        except IngestError as error:
            pipe.error = str(error)
        except Exception:  # noqa: BLE001 - hostile bytes end this stream, and no other
            pipe.error = f"the audio is not {self._name}, or it is damaged"
        finally:
            with pipe.turn:
                pipe.done = True
                pipe.data = b""
                pipe.turn.notify_all()

    def _sound(self) -> Iterator[NDArray[np.float32]]:
        with av.open(
            self._pipe,
            mode="r",
            format=CONTAINERS[self._name],
            metadata_errors="replace",
            buffer_size=_READ_BYTES,
            container_options=_OPTIONS,
        ) as container:
            resampler: AudioResampler | None = None
            layout = None
            for frame in self._frames(container):
                if layout != (layout := (frame.sample_rate, frame.format.name, frame.layout.name)):
                    yield from _resampled(resampler, None)
                    resampler = AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
                frame.pts = None  # stamps may jump in damaged files; samples are counted
                yield from _resampled(resampler, frame)
            yield from _resampled(resampler, None)

    def _frames(self, container: InputContainer) -> Iterator[AudioFrame]:
        if not container.streams.audio:
            raise IngestError(f"the {self._name} holds no audio track")
        stream = container.streams.audio[0]
        codec = stream.codec_context
        if codec is None:
            raise IngestError(f"the codec inside {self._name} is not known")
        if codec.name not in _CODECS and not codec.name.startswith("pcm_"):
            raise IngestError(f"the codec {codec.name[:32]!r} inside {self._name} is not supported")
        damaged = 0
        self._pipe.damage = damage = Damage(container)
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.FFmpegError:
                damaged += 1
                damage.failed()
                if damaged > 100:
                    raise
                continue
            for frame in frames:
                if isinstance(frame, AudioFrame):
                    _check(frame)
                    damage.frame(frame)
                    yield frame


def _check(frame: AudioFrame) -> None:
    low, high = _RATES
    if not low <= frame.sample_rate <= high:
        raise IngestError(f"sample rate {frame.sample_rate} is not supported: {low} to {high} Hz")
    if frame.layout.nb_channels > _MOST_CHANNELS or frame.samples > _MOST_FRAME:
        raise IngestError("the audio has more channels, or longer frames, than any real recording")


def _resampled(
    resampler: AudioResampler | None, frame: AudioFrame | None
) -> Iterator[NDArray[np.float32]]:
    if resampler is None:
        return
    for out in resampler.resample(frame):
        yield out.to_ndarray().reshape(-1).astype(np.float32) * np.float32(1 / 32768)
