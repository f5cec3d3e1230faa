"""Read a CTranslate2 Whisper directory: model.bin (whole or in parts) and config.json.

The container is CTranslate2's binary version 4 to 6: little-endian, packed::

    u32 version, str spec, u32 revision, u32 count
    count x (str name, u8 rank, u32 dim x rank, u8 dtype, u32 bytes, raw data)
    u32 count, count x (str alias, str name)

where ``str`` is a u16 length that includes a final NUL, then the bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import torch

from ..errors import WeightsError
from ..whisper.dims import ModelDimensions
from .json_files import read_heads

__all__ = ["is_ct2", "read"]

Tensors = dict[str, torch.Tensor]

_DTYPES = {
    0: torch.float32,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.float16,
    5: torch.bfloat16,
}
_VERSIONS = range(4, 7)
_MAX_RANK = 4
_PART = re.compile(r"model\.bin\.part(\d+)")

# CTranslate2 name -> `.pt` names, inside a block. Several names: fused along the rows, in order.
_SELF_ATTENTION = {
    "self_attention/layer_norm": ("attn_ln",),
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
}
_CROSS_ATTENTION = {
    "attention/layer_norm": ("cross_attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
}
_FFN = {
    "ffn/layer_norm": ("mlp_ln",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
}
_BLOCK = {"encoder": _SELF_ATTENTION | _FFN, "decoder": _SELF_ATTENTION | _CROSS_ATTENTION | _FFN}
_OUTER = {
    "encoder/conv1": ("encoder.conv1",),
    "encoder/conv2": ("encoder.conv2",),
    "encoder/layer_norm": ("encoder.ln_post",),
    "decoder/layer_norm": ("decoder.ln",),
    "decoder/embeddings": ("decoder.token_embedding",),
}
_SUFFIXES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def is_ct2(path: Path) -> bool:
    """Whether the directory looks like one of this format, or like a part of one."""
    return (path / "model.bin").is_file() or bool(_parts(path))


def read(
    paths: tuple[Path, ...],
) -> tuple[ModelDimensions, Tensors, tuple[tuple[int, int], ...] | None]:
    """Dimensions, tensors and alignment heads of a model that lies in one or more directories.

    Raises:
        WeightsError: damaged, incomplete, of an unknown version, or not a Whisper.
    """
    reader = _Reader(_files(paths))
    try:
        variables = _read_variables(reader)
    finally:
        reader.close()
    config = paths[0] / "config.json"
    heads = read_heads(config) if config.is_file() else None
    try:
        return _dimensions(variables), _state(variables), heads
    except KeyError as error:
        raise WeightsError(f"{paths[0]} lacks {error.args[0]}: get the model again.") from error
    except (ValueError, IndexError, RuntimeError) as error:
        raise WeightsError(
            f"{paths[0]} does not hold a whole Whisper model ({error}): get it again."
        ) from error


def _parts(path: Path) -> dict[int, Path]:
    matches = ((_PART.fullmatch(item.name), item) for item in path.iterdir())
    return {int(match[1]): item for match, item in matches if match}


def _files(paths: tuple[Path, ...]) -> list[Path]:
    whole = paths[0] / "model.bin"
    if whole.is_file():
        return [whole]
    parts: dict[int, Path] = {}
    for path in paths:
        parts |= _parts(path)
    for number in range(1, max(parts) + 1):
        if number not in parts:
            raise WeightsError(
                f"{paths[0]} holds a split model without its part {number}: put model.bin.part"
                f"{number} beside the others."
            )
    return [parts[number] for number in sorted(parts)]


class _Reader:
    """Reads exact byte counts from files laid end to end."""

    def __init__(self, files: list[Path]) -> None:
        self.path = files[0]  # named in errors
        self._left = sum(file.stat().st_size for file in files)
        self._waiting = files[1:]  # files not opened yet
        self._file: BufferedReader = files[0].open("rb")

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self._left

    def close(self) -> None:
        self._file.close()

    def error(self, what: str) -> WeightsError:
        return WeightsError(
            f"{self.path} is not a readable CTranslate2 model: {what}; get it again."
        )

    def into(self, buffer: memoryview) -> None:
        """Fill the buffer."""
        if len(buffer) > self._left:
            raise self.error("it is cut short")
        self._left -= len(buffer)
        while buffer:
            count = self._file.readinto(buffer)
            if count:
                buffer = buffer[count:]
            elif self._waiting:
                self._file.close()
                self._file = self._waiting.pop(0).open("rb")
            else:
                raise self.error("it is cut short")

    def take(self, count: int) -> bytes:
        buffer = bytearray(min(count, self._left + 1))
        self.into(memoryview(buffer))
        return bytes(buffer)

    def unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def number(self, form: str = "I") -> int:
        return self.unpack(form)[0]

    def text(self) -> str:
        raw = self.take(self.number("H"))
        try:
            if raw[-1:] != b"\0":
                raise ValueError("no final NUL")
            return raw[:-1].decode()
        except ValueError as error:
            raise self.error("its names are garbled") from error


def _read_variables(reader: _Reader) -> Tensors:
    version = reader.number()
    if version not in _VERSIONS:
        raise reader.error(f"its first bytes name version {version}, known are 4 to 6")
    spec = reader.text()
    if spec != "WhisperSpec":
        raise reader.error(f"it holds a {spec[:40]!r}, not a Whisper")
    reader.number()  # revision of the spec: all of them name the tensors alike
    variables: Tensors = {}
    for _ in range(reader.number()):
        name = reader.text()
        variables[name] = _read_tensor(reader, name)
    for _ in range(reader.number()):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise reader.error(f"its alias {alias!r} stands for nothing")
        variables[alias] = variables[name]
    if reader.left:
        raise reader.error(f"{reader.left} bytes follow its end")
    return variables


def _read_tensor(reader: _Reader, name: str) -> torch.Tensor:
    rank = reader.number("B")
    if rank > _MAX_RANK:
        raise reader.error(f"{name!r} has {rank} dimensions")
    shape = reader.unpack(f"{rank}I")
    dtype = _DTYPES.get(reader.number("B"))
    if dtype is None:
        raise reader.error(f"{name!r} is of an unknown type")
    size = reader.number()
    count = 1
    for length in shape:
        count *= length
    if size != count * dtype.itemsize or not count:
        raise reader.error(f"the length of {name!r} does not fit its shape")
    if size > reader.left:  # before the allocation, which a garbled length could make huge
        raise reader.error("it is cut short")
    flat = torch.empty(size, dtype=torch.uint8)
    reader.into(flat.numpy().data)
    return flat.view(dtype).view(shape)


def _dimensions(variables: Tensors) -> ModelDimensions:
    conv = variables["encoder/conv1/weight"]  # [n_state, n_mels, 3]
    embedding = variables["decoder/embeddings/weight"]  # [n_vocab, n_state]
    return ModelDimensions(
        n_mels=conv.shape[1],
        n_audio_ctx=variables["encoder/position_encodings/encodings"].shape[0],
        n_audio_state=conv.shape[0],
        n_audio_head=int(variables["encoder/num_heads"]),
        n_audio_layer=_layers(variables, "encoder"),
        n_vocab=embedding.shape[0],
        n_text_ctx=variables["decoder/position_encodings/encodings"].shape[0],
        n_text_state=embedding.shape[1],
        n_text_head=int(variables["decoder/num_heads"]),
        n_text_layer=_layers(variables, "decoder"),
    )


def _layers(variables: Tensors, side: str) -> int:
    numbered = (re.match(rf"{side}/layer_(\d+)/", name) for name in variables)
    return max((int(match[1]) for match in numbered if match), default=-1) + 1


def _state(variables: Tensors) -> Tensors:
    state = {
        f"{side}.positional_embedding": _plain(variables, f"{side}/position_encodings/encodings")
        for side in _BLOCK
    }
    for theirs, ours in _names(variables):
        for suffix, our_suffix in _SUFFIXES.items():
            if f"{theirs}/{suffix}" not in variables:
                continue
            pieces = _plain(variables, f"{theirs}/{suffix}").chunk(len(ours))
            for name, piece in zip(ours, pieces, strict=True):
                # Whisper's keys have no bias; fusing gave them zeros.
                if not (name.endswith(".key") and our_suffix == "bias"):
                    state[f"{name}.{our_suffix}"] = piece
    return state


def _names(variables: Tensors) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from _OUTER.items()
    for side, block in _BLOCK.items():
        for layer in range(_layers(variables, side)):
            for theirs, ours in block.items():
                yield (
                    f"{side}/layer_{layer}/{theirs}",
                    tuple(f"{side}.blocks.{layer}.{name}" for name in ours),
                )


def _plain(variables: Tensors, name: str) -> torch.Tensor:
    """The variable as floating-point numbers: q / scale where it is quantised."""
    tensor = variables[name]
    if tensor.is_floating_point():
        return tensor
    scale = variables[f"{name}_scale"].float()
    if scale.dim():  # one scale a row: [out] -> [out, 1, ...]
        scale = scale.view(-1, *([1] * (tensor.dim() - 1)))
    return tensor.float() / scale
