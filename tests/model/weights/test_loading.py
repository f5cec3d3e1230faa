"""``load_model`` by name and by path, of every kind of file, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from whisper_stream.model.errors import ModelError, UnknownModelError, WeightsError
from whisper_stream.model.weights.loading import load_model, pick_device
from whisper_stream.model.weights.registry import lookup
from whisper_stream.model.whisper.network import TextDecoder, Whisper

from ...helpers.weight_files import SMALL, ct2_directory, pt_file, small_state

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")


def same_weights(one: Whisper, other: Whisper) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.allclose(ours[key], theirs[key], atol=1e-3) for key in ours
    )


def test_a_published_model_by_name(tiny_en: Whisper) -> None:
    published = lookup("tiny.en")
    assert (tiny_en.name, tiny_en.dims) == ("tiny.en", published.dims)
    assert tiny_en.alignment_heads == published.alignment_heads
    assert (tiny_en.device.type, tiny_en.dtype) == ("cpu", torch.float32)
    assert not tiny_en.training
    assert not any(parameter.requires_grad for parameter in tiny_en.parameters())
    assert not tiny_en.is_multilingual


def test_a_pt_file_and_a_ct2_folder_give_the_same_model(tmp_path: Path) -> None:
    state = small_state()
    file = pt_file(tmp_path / "mine.pt", state)
    folder = ct2_directory(tmp_path / "mine", state)
    first = load_model(file, device="cpu", compute_type="float32")
    second = load_model(str(folder), device="cpu", compute_type="float32")
    assert first.dims == SMALL
    assert same_weights(first, second)
    tokens, mel = torch.tensor([[1, 2, 3]]), torch.randn(1, SMALL.n_mels, 2 * SMALL.n_audio_ctx)
    with torch.inference_mode():
        assert first(mel, tokens).shape == (1, 3, SMALL.n_vocab)
    assert isinstance(first.decoder, TextDecoder)
    assert first.decoder.projection.weight is first.decoder.token_embedding.weight


def test_a_name_nobody_published() -> None:
    with pytest.raises(UnknownModelError, match="tiny.fr"):
        load_model("tiny.fr", device="cpu")


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "notes.pt"
    file.write_text("no weights here")
    with pytest.raises(WeightsError, match="notes.pt"):
        load_model(file, device="cpu")


@pytest.mark.parametrize("device", ["tpu9", "cpux", "meta"])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(ModelError, match="use cpu, cuda or cuda:N"):
        pick_device(device)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="sees no GPU"):
        pick_device("cuda:1")
    assert pick_device(None) == pick_device("auto") == torch.device("cpu")


def test_an_unknown_compute_type_is_told_before_anything_is_read() -> None:
    with pytest.raises(ModelError, match="int4"):
        load_model("no such model", device="cpu", compute_type="int4")
