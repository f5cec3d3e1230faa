"""``whisper-stream mic``: choosing a device, losing it, and a real one through PortAudio."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.errors import SourceError
from whisper_stream.clients.sources import microphone as module
from whisper_stream.clients.sources.microphone import Device, Microphone, find_device

from ...helpers.audio_rig import room
from ...helpers.texts import SPEECH, check_times, errors_in, read_srt


def device(index: int, name: str, *, default: bool = False) -> Device:
    return Device(index=index, name=name, channels=1, sample_rate=48_000.0, default=default)


DEVICES = [device(0, "Webcam"), device(2, "USB Mic"), device(5, "USB Mic 2", default=True)]


@pytest.mark.parametrize(
    ("wanted", "index"), [(None, 5), ("2", 2), ("webcam", 0), ("USB Mic", 2), ("mic 2", 5)]
)
def test_a_device_is_found_by_number_or_name(wanted: str | None, index: int) -> None:
    assert find_device(DEVICES, wanted).index == index


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("usb", "fits several inputs; there are 2 'USB Mic', 5 'USB Mic 2'"),
        ("phone", "fits no input; there are 0 'Webcam', 2 'USB Mic'"),
        ("1", "fits no input"),
    ],
)
def test_a_name_that_does_not_fit(wanted: str, reason: str) -> None:
    with pytest.raises(SourceError, match=re.escape(reason)):
        find_device(DEVICES, wanted)


class FakePortAudio(types.ModuleType):
    """PortAudio with one input, which plays ``takes``: one list of levels each time it is opened."""

    PortAudioError = RuntimeError

    def __init__(self, takes: list[list[int]], channels: int = 2) -> None:
        super().__init__("sounddevice")
        self.takes = takes
        self.channels = channels
        self.default = types.SimpleNamespace(device=(0, 0))
        self.looks = 0
        self.present = True

    def query_devices(self) -> list[dict[str, Any]]:
        here = {"name": "Fake", "max_input_channels": self.channels, "default_samplerate": 48_000.0}
        return [here] if self.present else []

    def _terminate(self) -> None:
        self.looks += 1

    def _initialize(self) -> None:
        self.present = self.looks > 1  # back at the second look

    def RawInputStream(self, **options: Any) -> FakeStream:
        return FakeStream(self, **options)


class FakeStream:
    def __init__(
        self,
        owner: FakePortAudio,
        *,
        callback: Callable[..., None],
        finished_callback: Callable[[], None],
        blocksize: int,
        channels: int,
        **more: Any,
    ) -> None:
        self._owner = owner
        self._callback = callback
        self._finished = finished_callback
        self._frames = (blocksize, channels)

    def start(self) -> None:
        for level in self._owner.takes.pop(0) if self._owner.takes else []:
            block = np.full(self._frames, level, np.int16)
            self._callback(block.tobytes(), self._frames[0], None, None)
        self._owner.present = False
        self._finished()

    def close(self, ignore_errors: bool = True) -> None:
        pass


def test_an_unplugged_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its audio goes on where it comes back, with silence for the time between."""
    fake = FakePortAudio([[1000] * 5, [2000] * 5])
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)
    notices: list[str] = []
    microphone = Microphone(notice=notices.append)

    async def listen() -> list[bytes]:
        pieces = []
        async with aclosing(microphone.stream()) as stream:
            async for piece in stream:
                pieces.append(piece)
                if len(notices) > 2:  # gone for the second time
                    break
        return pieces

    heard = np.frombuffer(b"".join(asyncio.run(listen())), "<i2")
    assert notices[:2] == [
        "Fake is gone; waiting until it is plugged in again",
        "Fake is back",
    ]
    levels = [level for level in (1000, 0, 2000) if (np.abs(heard - level) < 20).sum() > 1000]
    assert levels == [1000, 0, 2000]
    first, last = np.flatnonzero(heard > 900)[0], np.flatnonzero(heard > 1900)[-1]
    assert first < 200 < last
    silence = (np.abs(heard) < 20).sum() / 16_000
    assert silence >= 0.1  # two looks, 0.05 s apart


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: Exception) -> Callable[[str], None]:
        def load(name: str) -> None:
            raise error

        return load

    monkeypatch.setattr(importlib, "import_module", refuse(ModuleNotFoundError()))
    with pytest.raises(SourceError, match=r"pip install 'whisper-stream\[mic\]'"):
        Microphone()
    monkeypatch.setattr(importlib, "import_module", refuse(OSError("PortAudio")))
    with pytest.raises(SourceError, match="apt install libportaudio2"):
        Microphone()
    monkeypatch.undo()
    nobody = FakePortAudio([])
    nobody.present = False
    monkeypatch.setitem(sys.modules, "sounddevice", nobody)
    with pytest.raises(SourceError, match="plug one in"):
        Microphone()


def test_the_list_of_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", FakePortAudio([]))
    assert main(["mic", "--list-devices"]) == 0
    assert capsys.readouterr().out == "*  0  Fake (2 channels, 48 kHz)\n"


@pytest.mark.needs("pulseaudio", "portaudio")
def test_a_real_microphone_is_captioned(tmp_path: Path) -> None:
    """A recording, played into a null sink, heard by PortAudio; ended by Ctrl-C."""
    output = tmp_path / "talk.srt"
    command = [sys.executable, "-m", "whisper_stream.clients", "mic", "--json"]
    command += ["--output", str(output)]
    with room(tmp_path) as sound:
        with subprocess.Popen(
            command, env=sound.environment, stdout=subprocess.PIPE, text=True
        ) as mic:
            assert mic.stdout is not None
            messages = map(json.loads, mic.stdout)
            assert next(messages)["type"] == "ready"
            assert next(messages)["type"] == "ack"  # it hears
            sound.play(SPEECH)
            next(each for each in messages if "your country." in each.get("text", "")[-20:])
            grown = output.read_text() if output.exists() else ""
            mic.send_signal(signal.SIGINT)
            last = list(messages)[-1]
        assert mic.returncode == 0
        assert last["type"] == "done"
    cues = read_srt(output.read_text())
    check_times(cues)
    said = " ".join(text for *_, text in cues)
    assert errors_in(said).wer <= 0.1, said
    assert "ellow" in grown  # it was there before the end
