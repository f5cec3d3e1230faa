"""Which device and how many threads an engine takes, alone or as one of several. Nothing is loaded."""

from __future__ import annotations

import pytest
import torch
from whisper_stream.model import loading
from whisper_stream.model.errors import ModelError
from whisper_stream.streamer.opening import open_engine


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
