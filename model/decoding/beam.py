"""Beam search over one window that goes on from given tokens; and what the model thinks of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..whisper.cache import CrossCache, SelfCache
from ..whisper.network import Whisper
from .greedy import GreedyOutput, GreedyRules
from .inference import EncodedAudio, TorchInference
from .strategies import BeamSearchDecoder, MaximumLikelihoodRanker, logprobs_of

__all__ = ["beam_search", "judge"]


def beam_search(
    model: Whisper,
    audio: CrossCache,
    initial: Sequence[int],
    rules: GreedyRules,
    *,
    beam_size: int,
    max_tokens: int,
    allow_empty: bool = False,
) -> list[int]:
    """The likeliest text after ``initial`` that ``beam_size`` beams find, without end-of-text.

    ``audio`` holds one window; ``max_tokens`` is how long the text may get. Options as for
    ``decode_greedy``.
    """
    encoded = EncodedAudio(model, torch.empty(1, 0, 0))
    encoded.cross = audio  # computed already
    room = min(max_tokens, model.dims.n_text_ctx - len(initial))
    inference = TorchInference(model, encoded, room=len(initial) + room)
    decoder = BeamSearchDecoder(
        beam_size=beam_size,
        eot=rules.eot,
        sample_begin=len(initial),
        reorder=inference.reorder,
    )
    tokens = torch.tensor([list(initial)], device=model.device)
    logits, _ = inference.prefill(tokens, sot_index=0, group=beam_size)
    tokens = tokens.repeat(beam_size, 1)
    with model.decoder.stepping():
        for step in range(room):
            logits = logits + rules.suppressed
            if step == 0 and not allow_empty:
                logits[:, list(rules.blank)] = -torch.inf
            tokens, done = decoder.update(tokens, logits)
            if done or step == room - 1:
                break
            logits = inference.step(tokens[:, -1])
    (candidates,) = decoder.finalize(tokens) if room > 0 else ([],)
    if not candidates:
        return []
    return list(candidates[MaximumLikelihoodRanker(None).rank(candidates)].tokens)


def judge(
    model: Whisper,
    audio: CrossCache,
    initial: Sequence[int],
    tokens: Sequence[int],
    rules: GreedyRules,
    *,
    sot_index: int,
    allow_empty: bool = False,
    cache: SelfCache | None = None,
) -> GreedyOutput:
    """What one decoder pass over ``initial`` and the text ``tokens`` says: log-probabilities, attention.

    They are those of decoding the same text. Options as for ``decode_greedy``.
    """
    fed = torch.tensor([[*initial, *tokens]], device=model.device)
    positions = torch.arange(fed.shape[1], device=model.device)[None]
    hidden, scores = model.decoder(
        fed,
        positions,
        cache or model.decoder.new_cache(1),
        audio,
        start=0,
        heads=model.heads_by_layer,
    )
    no_speech = model.decoder.logits(hidden[:, sot_index]).softmax(-1)[0, rules.no_speech].item()
    logits = model.decoder.logits(hidden[0, len(initial) - 1 :])
    logits += rules.suppressed
    if not allow_empty:
        logits[0, list(rules.blank)] = -torch.inf
    expected = torch.tensor([*tokens, rules.eot], device=model.device)
    logprobs = logprobs_of(expected, logits).tolist()
    return GreedyOutput(
        tokens=list(tokens),
        logprobs=logprobs,
        no_speech_prob=no_speech,
        scores=scores[0, :, sot_index:] if scores is not None else None,
        accepted=0,
        passes=1 + len(tokens),
        looped=False,
    )
