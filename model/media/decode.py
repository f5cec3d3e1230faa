"""The one loop that decodes audio: bytes of any container become mono int16 samples. Loads no torch.

::

    path, open file,        open_file()                frames()               blocks()
    pipe, socket        ->  open_track()  AudioTrack ----------> AudioFrame ----------> [S] int16
                                                     packets        with     resampled
                                                     decoded      its stamp  and mixed

``frames`` decides which errors end a track, ``blocks`` what time means: today samples are counted one after
the other, and the stamps of the frames (``stamp_of``) only show where something is missing (see ``damage``).

Rules for errors, the same for files, pipes, addresses and containers on the wire:

- A packet that cannot be decoded, or a frame that cannot be resampled, is damage. Decoding goes on.
- A container that breaks off after sound has come is damage too: what came before counts.
- Everything else ends in an AudioError: nothing was heard at all, or the bytes could not be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from numpy.typing import NDArray

from ..errors import AudioError
from .damage import Damage
from .headers import FileBytes, Raw
from .pcm import SAMPLE_RATE

__all__ = [
    "INT16_SCALE",
    "AudioTrack",
    "ByteReader",
    "NoSoundError",
    "TrackLimits",
    "open_file",
    "open_track",
    "reason_of",
    "stamp_of",
]

INT16_SCALE = np.float32(1 / 32768)  # of a block: then it is in -1..1

_CONTROL_BYTES = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b")  # in no text
_HEAD_BYTES = 4096  # of a file, that show whether it is a text


class NoSoundError(AudioError):
    """Raised at the end of a track without a single sample."""


class ByteReader(Protocol):
    """Bytes that arrive while they are decoded: a pipe, a socket."""

    def read(self, size: int = -1, /) -> bytes:
        """Wait for at least one byte and return at most ``size``; none at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackLimits:
    """Bounds for audio from strangers. Beyond them a track ends in an AudioError."""

    codecs: frozenset[str]  # FFmpeg's names
    codec_prefix: str  # names that begin so are allowed too
    min_rate: int  # samples per second
    max_rate: int
    max_channels: int
    max_frame_samples: int
    max_damaged_packets: int


def open_file(source: str | Path | IO[bytes], name: str | None = None) -> AudioTrack:
    """Open the first audio track of a file on disk, or of a binary file that is open and can be searched.

    Args:
        source: a path, or an open file.
        name: for messages; by default the path.

    Raises:
        AudioError: missing, a folder, unreadable, empty, a text, or without audio that can be decoded.
    """
    name = name or _name_of(source)
    if isinstance(source, (str, Path)):
        _check_path(Path(source), name)
        # The scheme keeps a path such as "rtp:x.wav" a path.
        return open_track(f"file:{source}", name, protocols="file", raw=FileBytes(source))
    return open_track(source, name, raw=FileBytes(source))


def open_track(
    source: str | ByteReader | IO[bytes],
    name: str,
    *,
    protocols: str | None = "none",
    raw: Raw | None = None,
    live: bool = False,
    limits: TrackLimits | None = None,
    explain: Callable[[str], str] | None = None,
    container_options: dict[str, str] | None = None,
    **arguments: Any,
) -> AudioTrack:
    """Open the first audio track of a container.

    Args:
        source: an address as FFmpeg takes it, or whatever gives the bytes.
        name: for messages.
        protocols: what FFmpeg may open by itself: a file that names others, as a playlist does, must not make
            us fetch them. None: everything.
        raw: the bytes of ``source`` as far as they can be seen; without them less damage is noticed.
        live: the sender may stop anywhere, so an early end is not damage.
        limits: for audio from strangers.
        explain: makes the sentence for what is not audio (without ``name``) out of FFmpeg's reason.
        container_options: for FFmpeg's demuxer, above ``protocols``.
        arguments: for ``av.open``.

    Raises:
        AudioError: it cannot be opened, is not audio, or is outside ``limits``.
    """
    explain = explain or _not_audio
    if protocols is not None:
        container_options = {"protocol_whitelist": protocols, **(container_options or {})}
    try:
        container = av.open(
            source,
            mode="r",
            metadata_errors="replace",
            container_options=container_options,
            **arguments,
        )
    except (av.FFmpegError, ValueError, OSError) as error:
        raise AudioError(f"{name} {explain(reason_of(error))}") from error
    try:
        return AudioTrack(container, name, raw=raw, live=live, limits=limits, explain=explain)
    except BaseException:
        container.close()
        raise


class AudioTrack:
    """The first audio track of an open container. A context manager, which closes the container.

    Attributes:
        name: for messages.
        damage: what is missing in it, as far as it was decoded.
        broken_off: the container broke off before its end; what came before was given.
    """

    def __init__(
        self,
        container: InputContainer,
        name: str,
        *,
        raw: Raw | None = None,
        live: bool = False,
        limits: TrackLimits | None = None,
        explain: Callable[[str], str] | None = None,
    ) -> None:
        """Take ``container``; the arguments are those of ``open_track``. Raises AudioError."""
        self._container = container
        self.name = name
        self._live = live
        self._limits = limits
        self._explain = explain or _not_audio
        if not container.streams.audio:
            raise AudioError(f"{name} has no audio track: give a file with sound in it")
        self._stream: AudioStream = container.streams.audio[0]
        # PyAV has no context for a codec that this FFmpeg lacks
        codec: AudioCodecContext | None = self._stream.codec_context
        if codec is None:
            raise AudioError(f"{name} is of a codec that is not known, or is damaged: convert it")
        if limits is not None:
            _check_codec(codec.name, name, limits)
        self._codec = codec
        self.damage = Damage(container, raw)
        self.broken_off = False
        self._damaged_packets = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._container.close()

    @property
    def duration(self) -> float | None:
        """Seconds that the container declares for the track, or for the whole file; None: it does not."""
        stream, duration = self._stream, self._container.duration
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        return duration / av.time_base if duration else None

    def frames(self) -> Iterator[AudioFrame]:
        """Yield the frames of the track in order, as they are stamped; once only.

        Raises:
            AudioError: nothing in it can be decoded, reading it fails, or a limit is passed.
        """
        packets = self._container.demux(
            self._stream
        )  # the last one is empty, and flushes the decoder
        while (packet := self._next_packet(packets)) is not None:
            yield from self._decode(packet)
        if self.broken_off:
            yield from self._decode(None)
        if not self._live:
            self.damage.note_end()

    def blocks(self, rate: int = SAMPLE_RATE) -> Iterator[NDArray[np.int16]]:
        """Yield the track's samples as they are decoded: mono blocks [S] at ``rate`` per second; once only.

        Raises:
            AudioError: as ``frames``; at the end, when there was no sound in it.
        """
        samples = 0
        for block in _resample(self.frames(), rate, self.damage):
            samples += block.size
            yield block
        if samples == 0:
            raise self.no_sound()

    def has_sound(self) -> bool:
        """Decode up to the first sample, and say whether there is one. Uses the track up."""
        return any(frame.samples for frame in self.frames())

    def no_sound(self) -> NoSoundError:
        """Make the error for a track without a sample."""
        reason = "holds no sound (zero-length or damaged audio): record or export it again"
        return NoSoundError(f"{self.name} {reason}")

    def _next_packet(self, packets: Iterator[Packet[AudioStream]]) -> Packet[AudioStream] | None:
        """Return the next packet; None at the end, or where the container breaks off."""
        try:
            return next(packets, None)
        except av.error.InvalidDataError as error:
            if not self.damage.begun:
                raise AudioError(f"{self.name} {self._explain(reason_of(error))}") from error
            self.damage.note_failure()
            self.broken_off = True
            return None
        except (av.FFmpegError, OSError) as error:
            raise AudioError(f"{self.name} cannot be read on ({reason_of(error)})") from error

    def _decode(self, packet: Packet[AudioStream] | None) -> Iterator[AudioFrame]:
        """Yield the frames of ``packet``; None: those that the decoder still holds."""
        with suppress(EOFError):  # it was flushed before
            try:
                frames = self._codec.decode(None) if packet is None else packet.decode()
            except av.FFmpegError as error:
                self.damage.note_failure()
                self._damaged_packets += 1
                limits = self._limits
                if limits and self._damaged_packets > limits.max_damaged_packets:
                    raise AudioError(f"{self.name} is damaged all over") from error
                return
            for frame in frames:
                if isinstance(frame, AudioFrame):
                    if self._limits is not None:
                        _check_frame(frame, self._limits)
                    self.damage.note_frame(frame, stamp_of(frame))
                    yield frame


def stamp_of(frame: AudioFrame) -> float | None:
    """Return the second of the track's own clock at which ``frame`` begins; None where nothing says so."""
    if frame.pts is None or frame.time_base is None:
        return None
    return float(frame.pts * frame.time_base)


def _resample(
    frames: Iterator[AudioFrame], rate: int, damage: Damage
) -> Iterator[NDArray[np.int16]]:
    """Convert frames to mono int16 blocks. A new format in mid-file starts a new resampler."""
    resampler: AudioResampler | None = None
    layout: tuple[str, str, int] | None = None
    for frame in frames:
        now = (frame.format.name, frame.layout.name, frame.sample_rate)
        if resampler is None or now != layout:
            yield from _drain(resampler)
            resampler = AudioResampler(format="s16", layout="mono", rate=rate)
            layout = now
        # Stamps may jump in damaged files: samples are counted, not stamped.
        frame.pts = None
        try:
            converted = resampler.resample(frame)
        except av.FFmpegError:  # a rate or layout that does not exist
            damage.note_failure()
            resampler = None
            continue
        for out in converted:
            yield out.to_ndarray()[0]
    yield from _drain(resampler)


def _drain(resampler: AudioResampler | None) -> Iterator[NDArray[np.int16]]:
    if resampler is not None:
        for out in resampler.resample(None):
            yield out.to_ndarray()[0]


def _name_of(source: str | Path | IO[bytes]) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "the audio given"


def _check_path(path: Path, name: str) -> None:
    if not path.exists():
        raise AudioError(f"{name} does not exist: check the path")
    if path.is_dir():
        raise AudioError(f"{name} is a folder: name an audio file inside it")
    if not os.access(path, os.R_OK):
        raise AudioError(f"{name} cannot be read: check its permissions")
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise AudioError(f"{name} cannot be read ({reason_of(error)})") from error
    if not head:
        raise AudioError(f"{name} is an empty file: record or export it again")
    # FFmpeg's guess takes some texts for headerless AMR. Audio always has control bytes.
    if not _CONTROL_BYTES.intersection(head):
        raise AudioError(f"{name} is a text, not audio: name an audio file")


def _check_codec(codec: str, name: str, limits: TrackLimits) -> None:
    if codec not in limits.codecs and not codec.startswith(limits.codec_prefix):
        raise AudioError(f"the codec {codec[:32]!r} inside {name} is not supported")


def _check_frame(frame: AudioFrame, limits: TrackLimits) -> None:
    low, high = limits.min_rate, limits.max_rate
    if not low <= frame.sample_rate <= high:
        raise AudioError(f"sample rate {frame.sample_rate} is not supported: {low} to {high} Hz")
    if frame.layout.nb_channels > limits.max_channels or frame.samples > limits.max_frame_samples:
        raise AudioError("the audio has more channels, or longer frames, than any real recording")


def _not_audio(reason: str) -> str:
    return (
        "is not audio in any known format, or is damaged: "
        "give a WAV, FLAC, MP3, Ogg, M4A or WebM file"
    )


def reason_of(error: BaseException | None) -> str:
    """Return what FFmpeg or the system says of an error, without number and name."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error).lower()
