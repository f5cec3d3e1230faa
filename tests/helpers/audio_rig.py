"""A sound server without sound hardware: what is played into a null sink, a microphone hears."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PULSEAUDIO", "Room", "room"]

PULSEAUDIO = shutil.which("pulseaudio")
_ALSA = "pcm.!default { type pulse }\nctl.!default { type pulse }\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``environment`` is for programs that shall use this sound server."""

    environment: dict[str, str]

    def play(self, recording: Path) -> None:
        """Play a recording to its end."""
        command = ["paplay", "--device=room", str(recording)]
        subprocess.run(command, env=self.environment, check=True)


@contextmanager
def room(folder: Path) -> Iterator[Room]:
    """PulseAudio with one null sink, whose monitor is the default microphone."""
    assert PULSEAUDIO is not None, "apt-get install pulseaudio pulseaudio-utils libasound2-plugins"
    (folder / ".asoundrc").write_text(_ALSA)
    socket = folder / "socket"
    environment = {
        **os.environ,
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "PULSE_SERVER": f"unix:{socket}",
    }
    (folder / "setup.pa").write_text(
        f"load-module module-native-protocol-unix socket={socket} auth-anonymous=1\n"
        "load-module module-null-sink sink_name=room\n"
        "set-default-source room.monitor\n"
    )
    command = [PULSEAUDIO, "-n", "-F", str(folder / "setup.pa"), "--daemonize=no"]
    command += ["--exit-idle-time=-1", "--use-pid-file=no", "--log-level=error"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            while not socket.exists():
                assert server.poll() is None, "PulseAudio ended"
            yield Room(environment=environment)
        finally:
            server.terminate()
