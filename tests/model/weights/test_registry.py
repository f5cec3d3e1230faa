"""The registry against the facts published with the openai-whisper package."""

from __future__ import annotations

import base64
import dataclasses
import gzip

import numpy as np
import pytest
import whisper
from whisper.model import ModelDimensions as ReferenceDimensions
from whisper.model import Whisper as ReferenceWhisper
from whisper_stream.model.errors import UnknownModelError
from whisper_stream.model.weights.registry import ALIASES, available_models, lookup
from whisper_stream.model.whisper.dims import ModelDimensions, tensor_shapes

NAMES = sorted(whisper._MODELS)


def test_every_published_name_is_known() -> None:
    assert sorted(available_models()) == NAMES
    assert sorted(whisper._ALIGNMENT_HEADS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_address_and_hash_are_the_published_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHISPER_STREAM_DOWNLOAD_URL", raising=False)
    model = lookup(name)
    assert model.url == whisper._MODELS[name]
    assert model.sha256 == whisper._MODELS[name].split("/")[-2]


@pytest.mark.parametrize("name", NAMES)
def test_alignment_heads_are_the_published_ones(name: str) -> None:
    model = lookup(name)
    mask = np.frombuffer(
        gzip.decompress(base64.b85decode(whisper._ALIGNMENT_HEADS[name])), dtype=bool
    ).reshape(model.dims.n_text_layer, model.dims.n_text_head)
    assert model.alignment_heads == tuple((int(i), int(j)) for i, j in np.argwhere(mask))


@pytest.mark.parametrize("name", NAMES)
def test_dimensions_make_the_published_file_size(name: str) -> None:
    """A published checkpoint is float16 tensors with little around: the sizes pin each other."""
    model = lookup(name)
    tensors = 2 * sum(int(np.prod(shape)) for shape in tensor_shapes(model.dims).values())
    assert 0 < model.size - tensors < 0.001 * model.size + 100_000


@pytest.mark.parametrize("name", ["tiny.en", "base"])
def test_tensors_and_parameters_equal_the_reference_network(name: str) -> None:
    dims = lookup(name).dims
    reference = ReferenceWhisper(ReferenceDimensions(**dataclasses.asdict(dims)))
    shapes = {key: tuple(tensor.shape) for key, tensor in reference.state_dict().items()}
    assert tensor_shapes(dims) == shapes
    assert dims.n_parameters == sum(item.numel() for item in reference.parameters())
    assert dims.is_multilingual == reference.is_multilingual
    assert dims.num_languages == reference.num_languages


@pytest.mark.parametrize(
    ("name", "languages"), [("tiny.en", 99), ("tiny", 99), ("large-v2", 99), ("turbo", 100)]
)
def test_languages_follow_from_the_vocabulary(name: str, languages: int) -> None:
    assert lookup(name).dims.num_languages == languages
    assert lookup(name).dims.is_multilingual == (not name.endswith(".en"))


def test_aliases_stand_for_their_models() -> None:
    assert {alias: lookup(alias).name for alias in ALIASES} == {
        "large": "large-v3",
        "turbo": "large-v3-turbo",
    }


def test_a_mirror_replaces_the_published_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lookup("tiny")
    monkeypatch.setenv("WHISPER_STREAM_DOWNLOAD_URL", "http://mirror/w/")
    assert model.url == f"http://mirror/w/{model.sha256}/tiny.pt"
    assert model.download_url("http://other") == f"http://other/{model.sha256}/tiny.pt"


@pytest.mark.parametrize(
    ("name", "suggestion"), [("tiny-en", "tiny.en"), ("Base", "base"), ("large-v4", "large-v")]
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownModelError, match=f"{name}.*did you mean.*{suggestion}"):
        lookup(name)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(UnknownModelError, match="the names are tiny.en, tiny, .*turbo"):
        lookup("zzzz")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_mels": 0}, "n_mels"),
        ({"n_vocab": 51864.0}, "n_vocab"),
        ({"n_text_layer": True}, "n_text_layer"),
        ({"n_audio_head": 5}, "n_audio_state"),
        ({"n_text_head": 7}, "n_text_state"),
        ({"n_text_state": 768}, "n_text_state"),
    ],
)
def test_impossible_dimensions_are_refused_by_name(change: dict[str, int], field: str) -> None:
    sizes: dict[str, int] = dataclasses.asdict(lookup("tiny").dims)
    with pytest.raises(ValueError, match=field):
        ModelDimensions(**(sizes | change))
