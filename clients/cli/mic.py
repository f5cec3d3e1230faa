"""``whisper-stream mic``: live captions of a microphone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from ...server.flags import FlagParser
from ..sdk.transcript import OutputFile
from ..sources.microphone import Microphone, input_devices, portaudio
from .args import add_daemon_flags, command_parser
from .play import Track, add_stream_flags, play, play_options
from .render import clean
from .terminal import print_notice
from .timeline import Timeline

__all__ = ["main"]

_MODEL_DEVICE = "--model-device"  # --device is the microphone here
_METER_CELLS = 10
_QUIET = -60.0  # decibels at the left end of the meter


def main(argv: Sequence[str]) -> int:
    """Caption a microphone until a signal; return the exit code.

    Raises:
        ClientError: with its own exit code.
    """
    parsed = _parser().parse_args(argv)
    if parsed.list_devices:
        return _list_devices()
    options = play_options(parsed, device_flag=_MODEL_DEVICE)
    microphone = Microphone(parsed.device, notice=print_notice)
    output = OutputFile(Path(parsed.output)) if parsed.output is not None else None
    timeline = None
    if parsed.timeline is not None:
        timeline = Timeline(Path(parsed.timeline), microphone.name)

    def status() -> Text:
        return _meter(microphone)

    track = Track(source=microphone, output=output, timeline=timeline, speed=None, status=status)
    code = play(options, [track])
    return 0 if code == 130 else code  # Ctrl-C is how it is meant to end


def _list_devices() -> int:
    devices = input_devices(portaudio())
    for device in devices:
        mark = "*" if device.default else " "
        rate = f"{device.sample_rate / 1000:g} kHz"
        channels = "mono" if device.channels == 1 else f"{device.channels} channels"
        sys.stdout.write(f"{mark} {device.index:>2}  {clean(device.name)} ({channels}, {rate})\n")
    if not devices:
        print_notice("no microphone was found")
    return 0 if devices else 1


def _meter(microphone: Microphone) -> Text:
    share = max(0.0, 1 - microphone.level / _QUIET)
    cells = round(share * _METER_CELLS)
    color = "red" if microphone.level > -1 else "green"
    return Text.assemble(
        ("━" * cells, color),
        ("━" * (_METER_CELLS - cells), "bright_black"),
        f" {clean(microphone.name)}",
        (" · Ctrl-C ends", "dim"),
    )


def _parser() -> FlagParser:
    parser = command_parser(
        "mic",
        description="Caption what a microphone hears, until Ctrl-C.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device", metavar="NAME", help="a microphone's number, or a part of its name")
    add("--list-devices", action="store_true", help="list the microphones; * marks the default")
    add_stream_flags(add)
    add_daemon_flags(parser, device_flag=_MODEL_DEVICE)
    return parser
