"""``whisper-stream doctor``: checks that this machine can run the daemon, and says what to do where it cannot."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ... import WhisperStreamError
from ..config import PREFIX, ServerConfig, read_settings
from ..http.auth import read_keys
from ..stream.journal import find_path_fault
from .tls import server_context

__all__ = ["Finding", "examine", "main"]

Verdict = Literal["ok", "note", "FAIL"]
_NEEDED = (
    "av",
    "soxr",
    "webrtcvad",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "websockets",
    "msgspec",
    "msgpack",
)
_KEYS_VARIABLE = PREFIX + "API_KEYS"
_LEAST_FREE = 1 << 30  # bytes for weights and journal


class Finding(NamedTuple):
    """One finding: its text is one sentence that says what is, and what to do.

    ``FAIL`` keeps the daemon from running; a ``note`` does not.
    """

    verdict: Verdict
    subject: str
    text: str


def main(argv: Sequence[str]) -> int:
    """Print the findings and return 1 if any of them is a failure.

    Takes the flags of ``whisper-stream serve``, and looks at what they ask for.
    """
    if any(flag in ("-h", "--help") for flag in argv):
        argparse.ArgumentParser(
            prog="whisper-stream doctor",
            description="Check that this machine can run the daemon.",
            epilog="Takes the flags of whisper-stream serve, and looks at what they ask for.",
        ).parse_args(["--help"])
    config = read_settings(argv, os.environ).config
    failed = False
    for finding in examine(config):
        failed = failed or finding.verdict == "FAIL"
        sys.stdout.write(f"{finding.verdict:>4}  {finding.subject}: {finding.text}\n")
    return 1 if failed else 0


def examine(
    config: ServerConfig, load: Callable[[str], Any] = importlib.import_module
) -> Iterator[Finding]:
    """Yield the findings, in the order in which they should be put right.

    Args:
        config: the options that the daemon would get.
        load: imports a module by its name.
    """
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("ok", "python", version)
    yield from _modules(load)
    yield _torch(load, config)
    yield _microphone(load)
    yield _weights(config)
    yield _port(config)
    yield from _files(config)
    yield _disk()
    yield _openssl(config)


def _modules(load: Callable[[str], Any]) -> Iterator[Finding]:
    for name in _NEEDED:
        try:
            load(name)
        except ImportError as error:
            text = f"cannot be loaded ({error}); install whisper-stream again"
            yield Finding("FAIL", name, text)


def _torch(load: Callable[[str], Any], config: ServerConfig) -> Finding:
    try:
        torch = load("torch")
    except (ImportError, OSError) as error:
        return Finding("FAIL", "torch", f"cannot be loaded ({error}); pip install torch")
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        free = torch.cuda.mem_get_info(0)[0] / 2**30
        return Finding("ok", "torch", f"{torch.__version__}, {name} with {free:.1f} GiB free")
    if config.device == "cuda":
        text = f"{torch.__version__} sees no GPU; install a CUDA build and driver, or --device cpu"
        return Finding("FAIL", "torch", text)
    text = f"{torch.__version__}, no GPU: {os.cpu_count()} CPU cores; small models keep up best"
    return Finding("ok", "torch", text)


def _microphone(load: Callable[[str], Any]) -> Finding:
    try:
        devices = load("sounddevice").query_devices()
    except ModuleNotFoundError:
        text = (
            "no sounddevice package, so no `whisper-stream mic`; pip install 'whisper-stream[mic]'"
        )
        return Finding("note", "microphone", text)
    except OSError:
        text = "no PortAudio library, so no `whisper-stream mic`; Debian: apt install libportaudio2"
        return Finding("note", "microphone", text)
    inputs = sum(device["max_input_channels"] > 0 for device in devices)
    if not inputs:
        return Finding("note", "microphone", "PortAudio sees none; the daemon does not need any")
    return Finding("ok", "microphone", f"PortAudio sees {inputs}")


def _weights(config: ServerConfig) -> Finding:
    from ...model.weights.locate import locate  # no torch

    try:
        source = locate(config.model)
    except WhisperStreamError as error:
        return Finding("FAIL", "weights", str(error))
    if source.kind == "download":
        text = f"{config.model} is not here yet and will be downloaded at the first start"
        return Finding("note", "weights", text)
    return Finding("ok", "weights", f"{config.model} is here ({source.kind})")


def _port(config: ServerConfig) -> Finding:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((config.host, config.port))
        except OSError as error:
            text = (
                f"{config.host} port {config.port} cannot be used ({error.strerror}); choose --port"
            )
            return Finding("FAIL", "port", text)
    return Finding("ok", "port", f"{config.host} port {config.port} is free")


def _files(config: ServerConfig) -> Iterator[Finding]:
    """Look at the files that the flags name; none is made or changed."""
    if config.journal is not None:
        yield _journal(Path(config.journal))
    checks: dict[str, Callable[[], object]] = {}
    if config.api_keys is not None or _KEYS_VARIABLE in os.environ:
        variable = os.environ.get(_KEYS_VARIABLE)
        checks["keys"] = lambda: f"{len(read_keys(config.api_keys, variable))} of clients"
    if (certificate := config.tls_cert) is not None:
        checks["certificate"] = lambda: server_context(certificate, config.tls_key) and certificate
    for subject, check in checks.items():
        try:
            yield Finding("ok", subject, str(check()))
        except WhisperStreamError as error:
            yield Finding("FAIL", subject, str(error))


def _journal(path: Path) -> Finding:
    fault = find_path_fault(path)
    if fault is not None:
        return Finding("FAIL", "journal", f"--journal {path} cannot be used {fault}")
    return Finding("ok", "journal", f"{path} can be written")


def _disk() -> Finding:
    from ...model.weights.locate import cache_dir

    folder = cache_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding("note", "disk", f"{folder} cannot be written: no weights can be downloaded")
    if free < _LEAST_FREE:
        return Finding(
            "note", "disk", f"only {free / 2**20:.0f} MiB are free for weights in {folder}"
        )
    return Finding("ok", "disk", f"{free / 2**30:.1f} GiB free for weights")


def _openssl(config: ServerConfig) -> Finding:
    if shutil.which("openssl") is None:
        verdict: Verdict = "FAIL" if config.self_signed else "note"
        return Finding(verdict, "openssl", "not installed, so no --self-signed; install openssl")
    return Finding("ok", "openssl", "there for --self-signed")
