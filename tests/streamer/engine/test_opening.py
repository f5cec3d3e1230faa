"""Which device and how many threads an engine takes, alone or as one of several. Nothing is loaded."""

from __future__ import annotations

import re

import pytest
import torch
from whisper_stream.model.errors import ModelError
from whisper_stream.model.weights import loading
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.engine import load_engine
from whisper_stream.server.errors import ConfigError
from whisper_stream.streamer.engine import opening
from whisper_stream.streamer.engine.opening import open_engine

from ...helpers.server_rig import ScriptedEngine


class Asked(ModelError):
    """In place of a model."""


def asked(monkeypatch: pytest.MonkeyPatch, gpus: int, **options: object) -> tuple[object, int]:
    """What ``open_engine`` asks for on a machine with ``gpus`` and eight processors: device, threads."""
    threads = [8]

    def load_model(name: str, **given: object) -> None:
        raise Asked(given["device"])

    monkeypatch.setattr(loading, "load_model", load_model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with pytest.raises(Asked) as caught:
        open_engine("tiny.en", **options)  # type: ignore[arg-type]
    return caught.value.args[0], threads[-1]


@pytest.mark.parametrize(
    ("gpus", "options", "device", "threads"),
    [
        (0, {}, None, 8),
        (0, {"threads": 3}, None, 3),
        (0, {"number": 2, "count": 3}, None, 2),
        (0, {"number": 0, "count": 16}, None, 1),
        (0, {"number": 1, "count": 2, "threads": 5}, None, 5),
        (1, {}, "cuda:0", 8),
        (1, {"number": 2, "count": 3}, "cuda:0", 2),
        (4, {"number": 5, "count": 6, "device": "cuda"}, "cuda:1", 1),
        (4, {"number": 1, "count": 2, "device": "cuda:3"}, "cuda:3", 4),
        (4, {"number": 1, "count": 2, "device": "cpu"}, "cpu", 4),
    ],
)
def test_engines_share_processors_and_take_gpus_in_turn(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    options: dict[str, object],
    device: str | None,
    threads: int,
) -> None:
    assert asked(monkeypatch, gpus, **options) == (device, threads)


@pytest.mark.parametrize(
    ("options", "known", "refused"),
    [
        ({"language": "de"}, (), "--language 'de' is not one that m knows: en"),
        ({"languages": "de,fr"}, (), "--languages 'de,fr' has none that m knows: en"),
        ({"languages": "de,en"}, (), None),
        ({"languages": "de"}, ("en", "de"), None),
        ({"language": "fr"}, ("en", "de"), "--language 'fr' is not one that m knows: en, de"),
    ],
)
def test_a_daemon_whose_model_knows_no_language_that_is_asked_for_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    known: tuple[str, ...],
    refused: str | None,
) -> None:
    engine = ScriptedEngine(languages=known, model_name="m")
    monkeypatch.setattr(opening, "open_engine", lambda model, **given: engine)
    config = ServerConfig(**options)  # type: ignore[arg-type]
    if refused is None:
        assert load_engine(config) is engine
        engine.close()
    else:
        with pytest.raises(ConfigError, match=re.escape(refused)):
            load_engine(config)
