"""The doctor's findings, on this machine and on worse ones; and what is meant for other machines."""

from __future__ import annotations

import configparser
import importlib
import socket
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.daemon.doctor import Finding, examine, main

DEPLOY = Path(__file__).parents[3] / "deploy"


def findings(load: Any = importlib.import_module, **options: Any) -> dict[str, Finding]:
    given: dict[str, Any] = {"port": 0, "model": "tiny.en"} | options
    config = ServerConfig(**given)
    return {finding.subject: finding for finding in examine(config, load)}


def test_this_machine_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", "--model", "tiny.en"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  ok  torch: ") for line in lines)
    assert any(line.startswith("  ok  weights: tiny.en is here") for line in lines)
    assert not any("FAIL" in line for line in lines)


def test_each_fault_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    def load(name: str) -> Any:
        if name == "av":
            raise ImportError("no module")
        if name == "sounddevice":
            raise OSError("PortAudio library not found")
        if name == "torch":
            raise OSError("libcudart.so not found")
        return importlib.import_module(name)

    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        found = findings(load, port=port, model="no-such-model")
        assert main(["--port", str(port)]) == 1
    assert f"port {port} cannot be used" in capsys.readouterr().out
    assert {name for name, each in found.items() if each.verdict == "FAIL"} == {
        *("av", "torch", "weights", "port")
    }
    assert found["microphone"].verdict == "note" and "apt install" in found["microphone"].text
    assert "--port" in found["port"].text and "pip install torch" in found["torch"].text


def test_what_the_flags_name_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, other = tmp_path / "keys", tmp_path / "other"
    keys.write_text("k1\n", encoding="utf-8")
    other.write_text("a text of somebody's", encoding="utf-8")
    found = findings(
        journal=str(tmp_path / "no" / "x"), api_keys=str(keys), tls_cert=str(tmp_path / "c.pem")
    )
    assert {name for name, each in found.items() if each.verdict == "FAIL"} == {
        *("journal", "keys", "certificate")
    }
    assert f"there is no folder {tmp_path / 'no'}" in found["journal"].text
    assert "keys, line 1: write NAME:KEY" in found["keys"].text
    assert "--tls-cert" in found["certificate"].text
    assert "it is not a journal" in findings(journal=str(other))["journal"].text
    keys.write_text("anna:0123456789abcdef\n", encoding="utf-8")
    found = findings(journal=str(tmp_path / "x"), api_keys=str(keys))
    assert found["journal"].verdict == found["keys"].verdict == "ok"
    assert not (tmp_path / "x").exists()
    monkeypatch.setenv("WHISPER_STREAM_API_KEYS", "short:key")
    assert "WHISPER_STREAM_API_KEYS, line 1" in findings()["keys"].text


def test_a_gpu_that_is_asked_for_must_be_there() -> None:
    class Torch:
        __version__ = "2.9"

        class cuda:
            @staticmethod
            def is_available() -> bool:
                return False

    def load(name: str) -> Any:
        return Torch if name == "torch" else importlib.import_module(name)

    assert findings(load, device="cuda")["torch"].verdict == "FAIL"
    assert findings(load)["torch"].verdict == "ok"


def test_the_unit_and_the_image_run_the_daemon_as_nobody_in_particular() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "whisper-stream.service")
    service = unit["Service"]
    assert "whisper-stream serve --config" in service["ExecStart"]
    assert (service["DynamicUser"], service["NoNewPrivileges"]) == ("yes", "yes")
    assert float(service["TimeoutStopSec"]) > ServerConfig().drain_seconds
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert "USER 10001" in image and "--uid 10001" in image and "HEALTHCHECK" in image
    for variable in ("HOST", "PORT", "JOURNAL"):
        assert f"WHISPER_STREAM_{variable}=" in image
        assert hasattr(ServerConfig(), variable.lower())
