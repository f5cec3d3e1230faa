"""Reading checkpoints: every format gives the same tensors, and bad files one clear error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from whisper.model import ModelDimensions as ReferenceDimensions
from whisper.model import Whisper as ReferenceWhisper
from whisper.model import sinusoids
from whisper_stream.model.errors import WeightsError
from whisper_stream.model.weights.checkpoint import Checkpoint, read_checkpoint
from whisper_stream.model.weights.locate import locate
from whisper_stream.model.weights.registry import lookup

from ...helpers.weight_files import (
    SMALL,
    State,
    ct2_directory,
    hf_directory,
    hf_state,
    pt_file,
    small_state,
)


def read_package(name: str, root: Path) -> Checkpoint:
    source = locate(name, download_root=root)
    assert source.kind == "package"
    return read_checkpoint(source.paths, name=source.name)


def assert_same(checkpoint: Checkpoint, state: State, *, atol: float = 0.0) -> None:
    assert checkpoint.dims == SMALL
    assert checkpoint.state.keys() == state.keys()
    for key, tensor in state.items():
        torch.testing.assert_close(
            checkpoint.state[key].float(), tensor.float(), rtol=0.0, atol=atol, msg=key
        )


# -- real weights


@pytest.mark.parametrize("name", ["tiny.en", "base"])
def test_packaged_weights_fit_the_reference_network(name: str, tmp_path: Path) -> None:
    checkpoint = read_package(name, tmp_path)
    assert checkpoint.name == name
    assert checkpoint.dims == lookup(name).dims
    assert checkpoint.alignment_heads == lookup(name).alignment_heads
    reference = ReferenceWhisper(ReferenceDimensions(**dataclasses.asdict(checkpoint.dims)))
    reference.load_state_dict(checkpoint.state, strict=True, assign=True)
    assert {tensor.dtype for tensor in checkpoint.state.values()} == {torch.float16}
    positions = sinusoids(checkpoint.dims.n_audio_ctx, checkpoint.dims.n_audio_state)
    torch.testing.assert_close(
        checkpoint.state["encoder.positional_embedding"].float(), positions, rtol=0, atol=1e-3
    )


def test_a_copy_as_pt_reads_back_with_its_name_and_heads(tmp_path: Path) -> None:
    checkpoint = read_package("tiny.en", tmp_path)
    path = pt_file(tmp_path / "tiny.en.pt", checkpoint.state, checkpoint.dims)
    again = read_checkpoint(path)
    assert (again.dims, again.name) == (checkpoint.dims, "tiny.en")
    assert again.alignment_heads == lookup("tiny.en").alignment_heads
    assert all(torch.equal(again.state[key], item) for key, item in checkpoint.state.items())


def test_weights_of_another_size_than_the_name_says_are_refused(tmp_path: Path) -> None:
    source = locate("tiny.en", download_root=tmp_path)
    with pytest.raises(WeightsError, match="is not base"):
        read_checkpoint(source.paths, name="base")


# -- every format, both ways


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("write", [pt_file, hf_directory, ct2_directory])
def test_stored_values_and_types_come_back(
    write: Callable[[Path, State], Path], dtype: torch.dtype, tmp_path: Path
) -> None:
    state = {key: tensor.to(dtype) for key, tensor in small_state().items()}
    checkpoint = read_checkpoint(write(tmp_path / "model", state))
    assert_same(checkpoint, state)
    assert {tensor.dtype for tensor in checkpoint.state.values()} == {dtype}
    assert checkpoint.name is None


@pytest.mark.parametrize("convolutions", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
def test_quantised_ct2_comes_back_within_half_a_step(
    bits: int, convolutions: bool, tmp_path: Path
) -> None:
    state = small_state()
    path = ct2_directory(tmp_path / "model", state, bits=bits, quantise_convolutions=convolutions)
    checkpoint = read_checkpoint(path)
    largest = max(float(tensor.abs().max()) for tensor in state.values())
    assert_same(checkpoint, state, atol=0.5001 * largest / (2 ** (bits - 1) - 1))
    weight = checkpoint.state["decoder.token_embedding.weight"]
    assert weight.dtype is torch.float32
    assert not torch.equal(weight, state["decoder.token_embedding.weight"])


@pytest.mark.parametrize("cut", [1, 1000, -1])
def test_ct2_parts_may_lie_in_one_folder_or_two(cut: int, tmp_path: Path) -> None:
    state = small_state()
    folder = ct2_directory(tmp_path / "one", state, heads=((1, 0), (1, 1)))
    data = (folder / "model.bin").read_bytes()
    (folder / "model.bin").unlink()
    (folder / "model.bin.part1").write_bytes(data[:cut])
    with pytest.raises(WeightsError, match="cut short"):
        read_checkpoint(folder)
    other = tmp_path / "two"
    other.mkdir()
    (other / "model.bin.part2").write_bytes(data[cut:])
    checkpoint = read_checkpoint((folder, other))
    assert_same(checkpoint, state)
    assert checkpoint.alignment_heads == ((1, 0), (1, 1))
    (other / "model.bin.part2").rename(folder / "model.bin.part2")
    assert_same(read_checkpoint(folder), state)


def test_a_missing_first_part_is_named(tmp_path: Path) -> None:
    folder = ct2_directory(tmp_path / "one", small_state())
    (folder / "model.bin").rename(folder / "model.bin.part2")
    with pytest.raises(WeightsError, match="without its part 1"):
        read_checkpoint(folder)


def test_hf_shards_heads_and_bare_names(tmp_path: Path) -> None:
    state = small_state()
    folder = hf_directory(tmp_path / "model", state, shards=3, heads=((0, 1), (1, 0)))
    checkpoint = read_checkpoint(folder)
    assert_same(checkpoint, state)
    assert checkpoint.alignment_heads == ((0, 1), (1, 0))
    # WhisperModel, without the head for generation, leaves "model." out.
    bare = {key.removeprefix("model."): tensor for key, tensor in hf_state(state).items()}
    (folder / "model.safetensors.index.json").unlink()
    save_file(bare, folder / "model.safetensors")
    assert_same(read_checkpoint(folder), state)


# -- bad files


def expect_error(path: Path, match: str) -> None:
    with pytest.raises(WeightsError, match=match) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    expect_error(tmp_path / "nothing.pt", "There is no file or folder")
    expect_error(tmp_path, "holds no Whisper weights")
    (tmp_path / "note.pt").write_text("Dear model,\nhow are you?\n")
    expect_error(tmp_path / "note.pt", "not a readable Whisper checkpoint")
    (tmp_path / "empty.pt").touch()
    expect_error(tmp_path / "empty.pt", "not a readable Whisper checkpoint")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([1, 2], "no usable model dimensions"),
        ({"model_state_dict": {}}, "no usable model dimensions"),
        ({"dims": {"n_mels": 80}, "model_state_dict": {}}, "no usable model dimensions"),
        ({"dims": dataclasses.asdict(SMALL)}, "no model_state_dict"),
        ({"dims": dataclasses.asdict(SMALL), "model_state_dict": {"a": 1}}, "no model_state_dict"),
        ({"dims": dataclasses.asdict(SMALL), "model_state_dict": {}}, "lacks the tensor encoder"),
    ],
)
def test_pt_files_of_something_else(content: object, match: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    expect_error(tmp_path / "other.pt", match)


class Payload:
    """Unpickling this would run code."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (Path.touch, (Path("ran"),))  # type: ignore[return-value]


def test_a_pt_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"dims": Payload()}, tmp_path / "evil.pt")
    expect_error(tmp_path / "evil.pt", "not a readable Whisper checkpoint")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("write", [pt_file, hf_directory, ct2_directory])
def test_missing_and_misshapen_tensors_are_named(
    write: Callable[[Path, State], Path], tmp_path: Path
) -> None:
    key = "decoder.blocks.1.mlp.2.weight"
    state = small_state()
    lacking = {name: tensor for name, tensor in state.items() if name != key}
    expect_error(write(tmp_path / "lacking", lacking), f"lacks the tensor {key}")
    misshapen = state | {key: state[key][:, 1:].contiguous()}
    expect_error(write(tmp_path / "misshapen", misshapen), key)


def test_a_tensor_that_whisper_lacks_is_named(tmp_path: Path) -> None:
    state = small_state() | {"adapter.weight": torch.zeros(2)}
    expect_error(pt_file(tmp_path / "m.pt", state), "adapter.weight")
    expect_error(hf_directory(tmp_path / "hf", state), "adapter.weight")


def test_heads_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    folder = ct2_directory(tmp_path / "a", small_state(), heads=((1, 2),))
    expect_error(folder, r"alignment head \[1, 2\]")
    (folder / "config.json").write_text('{"alignment_heads": [[1]]}')
    expect_error(folder, "not .layer, head. pairs")
    (folder / "config.json").write_text("{")
    expect_error(folder, "not valid JSON")


def test_hf_folders_with_bad_configs(tmp_path: Path) -> None:
    folder = hf_directory(tmp_path / "hf", small_state())
    config = json.loads((folder / "config.json").read_text())
    for change, match in (
        ({"model_type": "bert"}, "describes a bert model"),
        ({"d_model": None}, "no usable d_model"),
        ({"decoder_layers": 3}, "lacks the tensor decoder.blocks.2"),
        ({"decoder_attention_heads": 5}, "does not describe a Whisper"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        expect_error(folder, match)
    (folder / "config.json").unlink()
    expect_error(folder, "config.json is missing")


def test_hf_shards_that_are_missing_or_elsewhere(tmp_path: Path) -> None:
    folder = hf_directory(tmp_path / "hf", small_state(), shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    next(folder.glob("model-*")).unlink()
    expect_error(folder, "is missing")
    content["weight_map"]["model.encoder.conv1.bias"] = "../outside.safetensors"
    index.write_text(json.dumps(content))
    expect_error(folder, "outside its folder")


def test_ct2_of_another_kind_or_version(tmp_path: Path) -> None:
    folder = ct2_directory(tmp_path / "a", small_state())
    data = (folder / "model.bin").read_bytes()
    for changed, match in (
        (b"\x09" + data[1:], "version 9"),
        (data.replace(b"WhisperSpec", b"BertEncSpec", 1), "BertEncSpec"),
        (data + b"x", "1 bytes follow its end"),
        (b"version https://git-lfs.github.com/spec/v1\n", "version"),
    ):
        (folder / "model.bin").write_bytes(changed)
        expect_error(folder, match)


# -- damage anywhere


@pytest.fixture(scope="module")
def weight_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("weights")
    state = small_state()
    ct2 = ct2_directory(root / "ct2", state, bits=8)
    hf = hf_directory(root / "hf", state)
    return {
        "ct2": ct2 / "model.bin",
        "hf": hf / "model.safetensors",
        "pt": pt_file(root / "m.pt", state),
    }


def read_damaged(kind: str, path: Path, data: bytes) -> Checkpoint:
    path.write_bytes(data)
    return read_checkpoint(path if kind == "pt" else path.parent)


@pytest.mark.parametrize("kind", ["ct2", "hf", "pt"])
def test_truncation_anywhere_is_a_weights_error(kind: str, weight_files: dict[str, Path]) -> None:
    path = weight_files[kind]
    data = path.read_bytes()
    step = 1 if kind == "ct2" else 97
    offsets = {*range(0, min(len(data), 1500), step), *range(0, len(data), len(data) // 150)}
    try:
        for offset in [*sorted(offsets), len(data) - 1]:
            with pytest.raises(WeightsError):
                read_damaged(kind, path, data[:offset])
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["ct2", "hf", "pt"])
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), min_size=1))
def test_garbled_bytes_give_a_model_or_a_weights_error(
    kind: str, weight_files: dict[str, Path], changes: list[tuple[float, bytes]]
) -> None:
    path = weight_files[kind]
    data = path.read_bytes()
    garbled = bytearray(data)
    for place, piece in changes:
        # Half of them into the first kilobyte, where the structure is.
        span = 1000 if piece[0] % 2 else len(data) - 4
        at = int(place * span)
        garbled[at : at + len(piece)] = piece
    try:
        assert read_damaged(kind, path, bytes(garbled)).dims.n_vocab > 0
    except WeightsError as error:
        assert str(path.parent) in str(error)
    finally:
        path.write_bytes(data)
