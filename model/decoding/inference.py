"""The state of a decoding run beside the model: the encoded windows, and the tokens entered so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..whisper.cache import CrossCache, SelfCache
from ..whisper.network import Decoder, Whisper

__all__ = ["EncodedAudio", "Inference"]


class EncodedAudio:
    """Encoder output of some windows, with what the decoder reads of it, computed once.

    ``features``: [A, S, D], one row a window.
    """

    def __init__(self, model: Whisper, features: Tensor) -> None:
        self.model = model
        self.features = features

    @classmethod
    def from_mel(cls, model: Whisper, mel: Tensor) -> EncodedAudio:
        """``mel``: [A, n_mels, 3000], or features [A, S, D], which are taken as they are."""
        dims = model.dims
        audio = mel.to(model.device, model.dtype)
        if audio.shape[-2:] != (dims.n_audio_ctx, dims.n_audio_state):
            audio = model.encoder(audio)
        return cls(model, audio)

    @property
    def rows(self) -> int:
        return self.features.shape[0]

    @cached_property
    def cross(self) -> CrossCache:
        return self.model.decoder.audio_cache(self.features)

    def select(self, rows: Sequence[int]) -> EncodedAudio:
        """The windows ``rows`` alone."""
        if list(rows) == list(range(self.rows)):
            return self
        if len(rows) == 1:
            index: slice | list[int] = slice(rows[0], rows[0] + 1)  # a view
        else:
            index = list(rows)
        chosen = EncodedAudio(self.model, self.features[index])
        chosen.cross = CrossCache(
            [k[index] for k in self.cross.k], [v[index] for v in self.cross.v]
        )
        return chosen


class Inference:
    """A model's decoder with a preallocated cache: the initial tokens at once, then one token a step.

    Args:
        decoder: of the model.
        audio: keys and values of A windows.
        room: positions that the cache keeps for each row after ``prefill``; None for all that the model has.
    """

    def __init__(self, decoder: Decoder, audio: CrossCache, *, room: int | None = None) -> None:
        self._decoder = decoder
        self._audio = audio
        self._room = room
        self._cache: SelfCache | None = None  # set by prefill
        self._length = 0  # tokens entered so far

    def prefill(self, tokens: Tensor, *, sot_index: int, group: int) -> tuple[Tensor, Tensor]:
        """Run the initial tokens; afterwards each row stands ``group`` times in a row.

        Args:
            tokens: [A, T], the same number for every window.
            sot_index: where ``<|startoftranscript|>`` stands in them.
            group: candidates of each window.

        Returns:
            The logits of the next token [A * group, V], and those at ``sot_index`` [A, V].
        """
        rows, self._length = tokens.shape
        cache = self._decoder.new_cache(rows)
        positions = torch.arange(self._length, device=tokens.device).expand(rows, -1)
        hidden, _ = self._decoder(tokens, positions, cache, self._audio, start=0)
        # two rows of logits are wanted, not all: the projection is the dearest layer
        logits = self._decoder.logits(hidden[:, [sot_index, -1]])  # [A, 2, V]
        if group > 1:
            cache.repeat(group, room=self._room)
        self._cache = cache
        return logits[:, 1].repeat_interleave(group, dim=0), logits[:, 0]

    def step(self, tokens: Tensor) -> Tensor:
        """Append ``tokens`` [B], one to each row; return the logits of the next [B, V]."""
        assert self._cache is not None, "prefill comes before step"
        at = self._length
        positions = torch.full((tokens.shape[0], 1), at, device=tokens.device)
        hidden, _ = self._decoder(tokens[:, None], positions, self._cache, self._audio, start=at)
        self._length += 1
        return self._decoder.logits(hidden[:, 0])

    def reorder(self, source_rows: Sequence[int]) -> None:
        """Let row i go on from what row ``source_rows[i]`` has seen."""
        assert self._cache is not None, "prefill comes before reorder"
        self._cache.reorder(source_rows, length=self._length)
