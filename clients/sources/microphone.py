"""The microphone through PortAudio, as 16 kHz mono PCM, however often it is unplugged.

sounddevice is imported when a microphone is first asked for: everything else works without it.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from ..errors import SourceError
from .files import CHUNK_SAMPLES, SAMPLE_RATE

__all__ = ["Device", "Microphone", "find_device", "input_devices"]

_BLOCK_SECONDS = 0.1
_SILENT_SECONDS = 2.0  # without a block: the device is gone, whatever PortAudio says
_RETRY_SECONDS = 1.0  # between looks for a device that was unplugged
_FLOOR = 1e-4  # -80 dB

_INSTALL = "install it with `pip install 'whisper-stream[mic]'`"
_PORTAUDIO = (
    "the PortAudio library is missing; install it (Debian and Ubuntu: apt install libportaudio2; "
    "Fedora: dnf install portaudio; macOS: brew install portaudio)"
)
_NOTHING = (
    "no microphone was found; plug one in, or give this user access to it (on Linux a member of "
    "the group audio, with PulseAudio or PipeWire running), or pipe audio into `whisper-stream -`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An audio input. ``index`` is PortAudio's, and holds until devices come or go."""

    index: int
    name: str
    channels: int
    sample_rate: float
    default: bool


def portaudio() -> Any:
    """The sounddevice module.

    Raises:
        SourceError: it, or the PortAudio library under it, is not installed.
    """
    try:
        return importlib.import_module("sounddevice")
    except ModuleNotFoundError:
        raise SourceError(f"the microphone needs the sounddevice package; {_INSTALL}") from None
    except OSError:
        raise SourceError(_PORTAUDIO) from None


def input_devices(sd: Any) -> list[Device]:
    """Every audio input that PortAudio knows now."""
    try:
        default = sd.default.device[0]
        found = list(sd.query_devices())
    except sd.PortAudioError as error:
        raise SourceError(f"audio devices cannot be listed: {error}") from None
    return [
        Device(
            index=index,
            name=str(info["name"]),
            channels=int(info["max_input_channels"]),
            sample_rate=float(info["default_samplerate"]),
            default=index == default,
        )
        for index, info in enumerate(found)
        if info["max_input_channels"] > 0
    ]


def find_device(devices: list[Device], wanted: str | None) -> Device:
    """The device that ``wanted`` names: its index, or a part of its name. None: the default.

    Raises:
        SourceError: there is none, or the name fits none or several.
    """
    if not devices:
        raise SourceError(_NOTHING)
    if wanted is None:
        return next((device for device in devices if device.default), devices[0])
    if wanted.isascii() and wanted.isdigit():
        fitting = [device for device in devices if device.index == int(wanted)]
    else:
        fitting = [device for device in devices if device.name == wanted] or [
            device for device in devices if wanted.casefold() in device.name.casefold()
        ]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{device.index} {device.name!r}" for device in fitting or devices)
    problem = "fits several inputs" if fitting else "fits no input"
    raise SourceError(f"--device {wanted}: {problem}; there are {listed}")


class Microphone:
    """One microphone, live.

    Attributes:
        name: of the device in use.
        level: the peak of the last block in decibels below full scale, -80 to 0.
    """

    def __init__(
        self, wanted: str | None = None, notice: Callable[[str], None] = lambda text: None
    ) -> None:
        """``notice`` is told in one line of a device that has gone or come back.

        Raises:
            SourceError: sounddevice, PortAudio or the device is missing.
        """
        self._sd = portaudio()
        self._wanted = wanted
        self.notice = notice
        self.name = find_device(input_devices(self._sd), wanted).name
        self.level = -80.0
        self.doubt: str | None = None
        self.damage: str | None = None

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield s16le mono at 16 kHz in pieces of about 100 ms, for ever.

        While the device is away silence stands in for it, so that times stay true.

        Raises:
            SourceError: the device cannot be opened at first.
        """
        capture = self._open()
        try:
            while True:
                block = await capture.block()
                if block is not None:
                    self.level = _decibels(block)
                    if len(pcm := capture.resample(block)):
                        yield pcm
                    continue
                capture.close()
                self.level = -80.0
                self.notice(f"{self.name} is gone; waiting until it is plugged in again")
                gone = time.monotonic()
                capture = await self._reopen()
                missed = round((time.monotonic() - gone) * SAMPLE_RATE)
                self.notice(f"{self.name} is back")
                for at in range(0, missed, CHUNK_SAMPLES):
                    yield bytes(2 * min(CHUNK_SAMPLES, missed - at))
        finally:
            capture.close()

    def _open(self) -> _Capture:
        device = find_device(input_devices(self._sd), self._wanted)
        self.name = device.name
        return _Capture(self._sd, device)

    async def _reopen(self) -> _Capture:
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            # PortAudio looks for devices only when it starts.
            self._sd._terminate()
            self._sd._initialize()
            try:
                return self._open()
            except SourceError:
                continue


class _Capture:
    """An open device. Blocks come from PortAudio's thread into the event loop."""

    def __init__(self, sd: Any, device: Device) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[NDArray[np.int16] | None] = asyncio.Queue()
        self._channels = min(device.channels, 2)
        self._resampler = soxr.ResampleStream(
            device.sample_rate, SAMPLE_RATE, num_channels=1, dtype="int16"
        )
        try:
            self._stream = sd.RawInputStream(
                device=device.index,
                samplerate=device.sample_rate,
                blocksize=round(device.sample_rate * _BLOCK_SECONDS),
                channels=self._channels,
                dtype="int16",
                callback=self._take_block,
                finished_callback=self._end,
            )
            self._stream.start()
        except sd.PortAudioError as error:
            reason = f"{device.name}: the microphone cannot be opened ({error})"
            raise SourceError(f"{reason}; close what uses it, or choose another --device") from None

    async def block(self) -> NDArray[np.int16] | None:
        """The next samples, [frames] mono at the device's rate; None once the device is gone."""
        try:
            async with asyncio.timeout(_SILENT_SECONDS):
                return await self._blocks.get()
        except TimeoutError:
            return None

    def resample(self, block: NDArray[np.int16]) -> bytes:
        samples: NDArray[np.int16] = self._resampler.resample_chunk(block)
        return samples.astype("<i2").tobytes()

    def close(self) -> None:
        self._stream.close(ignore_errors=True)

    def _take_block(self, data: Any, frames: int, when: object, status: object) -> None:
        samples = np.frombuffer(bytes(data), np.int16).reshape(frames, self._channels)
        mono = samples.mean(axis=1).astype(np.int16) if self._channels > 1 else samples[:, 0]
        self._hand_over(mono)

    def _end(self) -> None:
        self._hand_over(None)

    def _hand_over(self, block: NDArray[np.int16] | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._blocks.put_nowait, block)


def _decibels(block: NDArray[np.int16]) -> float:
    peak = float(np.abs(block.astype(np.int32)).max(initial=0)) / 32_768
    return float(20 * np.log10(max(peak, _FLOOR)))
