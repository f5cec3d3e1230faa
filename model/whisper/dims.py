"""The sizes that define a Whisper model, and the tensors that follow from them. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["ModelDimensions", "tensor_shapes"]

Shapes = dict[str, tuple[int, ...]]

# The first vocabulary size with language tokens in use: English-only models have one token less.
_FIRST_MULTILINGUAL_VOCAB = 51865
# Vocabulary entries that are not languages: text, timestamps and the other special tokens.
_NON_LANGUAGE_TOKENS = 51765


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDimensions:
    """Sizes of one Whisper model, under the names its published checkpoints use.

    Raises:
        ValueError: a size is not a positive integer, or a state does not divide into its heads.
    """

    n_mels: int  # mel bins of the input: 80, or 128 from large-v3 on
    n_audio_ctx: int  # token frames the encoder gives, 20 ms each: 1500
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int  # tokens the decoder can hold: 448
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{item.name} must be a positive integer, not {value!r}")
        if self.n_audio_state % self.n_audio_head:
            raise ValueError("n_audio_state must be a multiple of n_audio_head")
        if self.n_text_state % self.n_text_head:
            raise ValueError("n_text_state must be a multiple of n_text_head")
        if self.n_audio_state != self.n_text_state:
            raise ValueError("n_text_state must equal n_audio_state")

    @property
    def is_multilingual(self) -> bool:
        """Whether the vocabulary has language tokens in use."""
        return self.n_vocab >= _FIRST_MULTILINGUAL_VOCAB

    @property
    def num_languages(self) -> int:
        """Language tokens in the vocabulary: 99, or 100 from large-v3 on."""
        return self.n_vocab - _NON_LANGUAGE_TOKENS - int(self.is_multilingual)

    @property
    def n_parameters(self) -> int:
        """Trained values. The encoder's sinusoidal positions are computed, so do not count."""
        return sum(_count(shape) for shape in tensor_shapes(self).values()) - (
            self.n_audio_ctx * self.n_audio_state
        )


def tensor_shapes(dims: ModelDimensions) -> Shapes:
    """Name and shape of every tensor of a checkpoint, under the published `.pt` names."""
    state = dims.n_audio_state
    shapes: Shapes = {
        "encoder.positional_embedding": (dims.n_audio_ctx, state),
        "encoder.conv1.weight": (state, dims.n_mels, 3),
        "encoder.conv1.bias": (state,),
        "encoder.conv2.weight": (state, state, 3),
        "encoder.conv2.bias": (state,),
        "decoder.token_embedding.weight": (dims.n_vocab, state),
        "decoder.positional_embedding": (dims.n_text_ctx, state),
    }
    for layer in range(dims.n_audio_layer):
        shapes |= _block(f"encoder.blocks.{layer}", state, cross=False)
    for layer in range(dims.n_text_layer):
        shapes |= _block(f"decoder.blocks.{layer}", state, cross=True)
    return shapes | _norm("encoder.ln_post", state) | _norm("decoder.ln", state)


def _block(prefix: str, state: int, *, cross: bool) -> Shapes:
    shapes: Shapes = {}
    for attention in ("attn", "cross_attn") if cross else ("attn",):
        for part in ("query", "key", "value", "out"):
            shapes[f"{prefix}.{attention}.{part}.weight"] = (state, state)
            if part != "key":  # Whisper's keys have no bias: softmax would cancel it
                shapes[f"{prefix}.{attention}.{part}.bias"] = (state,)
        shapes |= _norm(f"{prefix}.{attention}_ln", state)
    shapes[f"{prefix}.mlp.0.weight"] = (4 * state, state)
    shapes[f"{prefix}.mlp.0.bias"] = (4 * state,)
    shapes[f"{prefix}.mlp.2.weight"] = (state, 4 * state)
    shapes[f"{prefix}.mlp.2.bias"] = (state,)
    return shapes | _norm(f"{prefix}.mlp_ln", state)


def _norm(name: str, state: int) -> Shapes:
    return {f"{name}.weight": (state,), f"{name}.bias": (state,)}


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
