"""Decoding of windows of 30 seconds: ``decode``, ``decode_with_fallback`` and ``detect_language``.

A ``DecodingTask`` is put together from its parts: ``Inference`` computes logits, ``LogitFilter``s bar
tokens, a ``TokenDecoder`` chooses among the rest, and a ``SequenceRanker`` picks the result.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), sections
2.3 and 4.5, and the published implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor

from ..errors import DecodingOptionsError
from ..media.audio import CHUNK_LENGTH
from ..whisper.network import Whisper
from ..whisper.tokenizer import Tokenizer, get_tokenizer
from .beam import BeamSearchDecoder
from .fallback import FallbackPolicy, compression_ratio
from .filters import ApplyTimestampRules, LogitFilter, SuppressBlank, SuppressTokens
from .inference import EncodedAudio, Inference
from .options import DecodingOptions
from .strategies import (
    Candidate,
    GreedyDecoder,
    MaximumLikelihoodRanker,
    TokenDecoder,
)

__all__ = [
    "DecodingOptions",
    "DecodingResult",
    "DecodingTask",
    "check_for_model",
    "decode",
    "decode_with_fallback",
    "detect_language",
]


@torch.inference_mode()
def detect_language(
    model: Whisper, mel: Tensor | EncodedAudio, tokenizer: Tokenizer | None = None
) -> tuple[Tensor, Any]:
    """Detect the language, by one decoder step after ``<|startoftranscript|>``.

    ``mel`` is as for :func:`decode`. Returns the likeliest language tokens ``[A]``, and for each window
    the probability of every language by ISO code; for a single window one token and one dict.

    Raises:
        DecodingOptionsError: the model is English-only.
    """
    if tokenizer is None:
        tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages)
    if tokenizer.language is None:
        raise DecodingOptionsError(
            "language cannot be detected by an English-only model: use a multilingual one"
        )
    single = isinstance(mel, Tensor) and mel.ndim == 2
    audio = mel if isinstance(mel, EncodedAudio) else _encode(model, mel)
    first = torch.full((audio.rows, 1), tokenizer.sot, device=model.device)
    logits, _ = Inference(model.decoder, audio.cross).prefill(first, sot_index=0, group=1)  # [A, V]
    languages = torch.tensor(tokenizer.all_language_tokens, device=logits.device)
    chances = logits[:, languages].softmax(dim=-1)  # [A, languages]
    tokens = languages[chances.argmax(dim=-1)]
    probs = [dict(zip(tokenizer.all_language_codes, row, strict=True)) for row in chances.tolist()]
    return (tokens[0], probs[0]) if single else (tokens, probs)


def _encode(model: Whisper, mel: Tensor) -> EncodedAudio:
    return EncodedAudio.from_mel(model, mel[None] if mel.ndim == 2 else mel)


_NOT_A_NUMBER = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodingResult:
    """The text of one window. A ``lang_id`` task sets only the language fields and the features."""

    audio_features: Tensor  # [S, D], the encoder's output
    language: str  # ISO code, given or detected
    language_probs: dict[str, float] | None = None  # where the language was detected
    tokens: list[int] = field(default_factory=list)  # timestamps among them, no end-of-text
    text: str = ""  # without timestamps and outer spaces
    avg_logprob: float = _NOT_A_NUMBER  # mean over the tokens and the end of the text
    no_speech_prob: float = _NOT_A_NUMBER
    temperature: float = _NOT_A_NUMBER
    compression_ratio: float = _NOT_A_NUMBER


class DecodingTask:
    """One way of decoding, ready to run over batches of windows."""

    def __init__(self, model: Whisper, options: DecodingOptions) -> None:
        check_for_model(model, options)
        self._model = model
        self._options = options
        self._tokenizer = get_tokenizer(
            model.is_multilingual,
            num_languages=model.num_languages,
            language=options.language,
            task="translate" if options.task == "translate" else None,
        )
        self._n_ctx = model.dims.n_text_ctx
        self._group = options.beam_size or options.best_of or 1
        self._sample_len = options.sample_len or self._n_ctx // 2
        self._initial = self._initial_tokens()
        self._sot_index = self._initial.index(self._tokenizer.sot)
        self._filters = self._logit_filters()
        self._ranker = MaximumLikelihoodRanker(options.length_penalty)

    def _initial_tokens(self) -> list[int]:
        """``[<|startofprev|> prompt] <|startoftranscript|> [language task] [<|notimestamps|>] [prefix]``"""
        options, tokenizer = self._options, self._tokenizer
        tokens = list(tokenizer.sot_sequence)
        if options.without_timestamps:
            tokens.append(tokenizer.no_timestamps)
        if options.prefix:
            prefix = _as_tokens(options.prefix, tokenizer)
            # With the default sample_len the bound is 0 and, as in the reference, nothing is cut.
            tokens += prefix[-(self._n_ctx // 2 - self._sample_len) :]
        if options.prompt:
            prompt = _as_tokens(options.prompt, tokenizer)
            tokens = [tokenizer.sot_prev, *prompt[-(self._n_ctx // 2 - 1) :], *tokens]
        if len(tokens) > self._n_ctx:
            raise DecodingOptionsError(
                f"prefix is too long: with it, {len(tokens)} tokens come before the text, and "
                f"{self._n_ctx} is all the model can hold; shorten it"
            )
        vocabulary = self._model.dims.n_vocab
        if any(token >= vocabulary for token in tokens):
            raise DecodingOptionsError(
                f"prompt or prefix has token ids beyond the vocabulary of {vocabulary}"
            )
        return tokens

    def _logit_filters(self) -> list[LogitFilter]:
        options, tokenizer = self._options, self._tokenizer
        sample_begin = len(self._initial)
        filters: list[LogitFilter] = []
        if options.suppress_blank:
            filters.append(SuppressBlank(tokenizer, sample_begin))
        if options.suppress_tokens:
            filters.append(SuppressTokens(self._suppressed_tokens()))
        if not options.without_timestamps:
            seconds_per_frame = CHUNK_LENGTH / self._model.dims.n_audio_ctx  # 0.02
            limit = None
            if options.max_initial_timestamp:
                limit = round(options.max_initial_timestamp / seconds_per_frame)
            filters.append(ApplyTimestampRules(tokenizer, sample_begin, limit))
        return filters

    def _suppressed_tokens(self) -> list[int]:
        tokenizer = self._tokenizer
        asked = {int(token) for token in self._options.suppress_tokens or ()}
        if -1 in asked:
            asked.remove(-1)
            asked.update(tokenizer.non_speech_tokens)
        beyond = [token for token in asked if token >= self._model.dims.n_vocab]
        if beyond:
            raise DecodingOptionsError(
                f"suppress_tokens has {beyond[0]}, beyond the vocabulary of "
                f"{self._model.dims.n_vocab} tokens"
            )
        structure = {
            tokenizer.transcribe,
            tokenizer.translate,
            tokenizer.sot,
            tokenizer.sot_prev,
            tokenizer.sot_lm,
            tokenizer.no_speech,  # its probability is read apart
        }
        return sorted(asked | structure)

    def run(self, audio: EncodedAudio) -> list[DecodingResult]:
        """Return one result for each of the windows in ``audio``."""
        tokens = torch.tensor([self._initial], device=self._model.device).repeat(audio.rows, 1)
        languages, probs = self._languages(audio, tokens)
        if self._options.task == "lang_id":
            return [
                DecodingResult(audio_features=features, language=code, language_probs=chances)
                for features, code, chances in zip(audio.features, languages, probs, strict=True)
            ]
        candidates, no_speech = self._sample(audio, tokens)
        return [
            self._result(group[self._ranker.rank(group)], features, code, chances, silence)
            for group, features, code, chances, silence in zip(
                candidates, audio.features, languages, probs, no_speech, strict=True
            )
        ]

    def _languages(
        self, audio: EncodedAudio, tokens: Tensor
    ) -> tuple[list[str], list[dict[str, float] | None]]:
        """Return the language of every window; a detected one is written into the initial ``tokens`` [A, T]."""
        options = self._options
        if options.task != "lang_id" and (options.language or not self._model.is_multilingual):
            return [options.language or "en"] * audio.rows, [None] * audio.rows
        detected, probs = detect_language(self._model, audio, self._tokenizer)
        if options.language is None:
            tokens[:, self._sot_index + 1] = detected
        return [max(row, key=row.__getitem__) for row in probs], probs

    def _sample(
        self, audio: EncodedAudio, tokens: Tensor
    ) -> tuple[list[list[Candidate]], list[float]]:
        """Extend ``tokens`` [A, T]; return the candidates of every window, and its no-speech probability."""
        inference = Inference(self._model.decoder, audio.cross)
        decoder = self._decoder(inference)
        logits, at_sot = inference.prefill(tokens, sot_index=self._sot_index, group=self._group)
        no_speech = at_sot.softmax(dim=-1)[:, self._tokenizer.no_speech].tolist()
        tokens = tokens.repeat_interleave(self._group, dim=0)
        with self._model.decoder.stepping():
            for left in reversed(range(self._sample_len)):
                for logit_filter in self._filters:
                    logit_filter.apply(logits, tokens)
                tokens, done = decoder.update(tokens, logits)
                if done or left == 0 or tokens.shape[1] > self._n_ctx:
                    break
                logits = inference.step(tokens[:, -1])
        return decoder.finalize(tokens), no_speech

    def _decoder(self, inference: Inference) -> TokenDecoder:
        options = self._options
        sample_begin, eot = len(self._initial), self._tokenizer.eot
        if options.beam_size is not None:
            return BeamSearchDecoder(
                beam_size=options.beam_size,
                eot=eot,
                sample_begin=sample_begin,
                reorder=inference.reorder,
                patience=options.patience,
            )
        return GreedyDecoder(
            temperature=options.temperature, eot=eot, sample_begin=sample_begin, group=self._group
        )

    def _result(
        self,
        best: Candidate,
        features: Tensor,
        language: str,
        language_probs: dict[str, float] | None,
        no_speech_prob: float,
    ) -> DecodingResult:
        text = self._tokenizer.decode(best.tokens).strip()
        return DecodingResult(
            audio_features=features,
            language=language,
            language_probs=language_probs,
            tokens=list(best.tokens),
            text=text,
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=no_speech_prob,
            temperature=self._options.temperature,
            compression_ratio=compression_ratio(text),
        )


def _as_tokens(value: object, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        return tokenizer.encode(" " + value.strip())
    assert isinstance(value, tuple), "DecodingOptions keeps tokens as a tuple"
    return list(value)


def check_for_model(model: Whisper, options: DecodingOptions) -> None:
    """Check that ``model`` can do what ``options`` ask for.

    Raises:
        DecodingOptionsError: it cannot; says why.
    """
    if not options.fp16 and model.dtype != torch.float32:
        raise DecodingOptionsError(
            "fp16=False asks for full precision, and the model was loaded in half: load it with "
            "compute_type float32"
        )
    if model.is_multilingual:
        return
    if options.task != "transcribe":
        raise DecodingOptionsError(
            f"task {options.task} needs a multilingual model: {model.name} knows English only"
        )
    if options.language not in (None, "en"):
        raise DecodingOptionsError(
            f"language {options.language} needs a multilingual model: {model.name} knows English only"
        )


@overload
def decode(
    model: Whisper, mel: Tensor, options: DecodingOptions | None = None, **overrides: Any
) -> DecodingResult | list[DecodingResult]: ...
@overload
def decode(
    model: Whisper, mel: EncodedAudio, options: DecodingOptions | None = None, **overrides: Any
) -> list[DecodingResult]: ...
@torch.inference_mode()
def decode(
    model: Whisper,
    mel: Tensor | EncodedAudio,
    options: DecodingOptions | None = None,
    **overrides: Any,
) -> DecodingResult | list[DecodingResult]:
    """Decode one window of 30 seconds, or several at once.

    Args:
        model: as made by ``load_model``.
        mel: ``[n_mels, 3000]`` or ``[A, n_mels, 3000]``, or the features of such windows,
            ``[1500, D]`` or ``[A, 1500, D]``, or what is kept of them to decode again.
        options: how; ``overrides`` replace single fields of it.

    Returns:
        One result for one window, else a list.

    Raises:
        DecodingOptionsError: options that make no sense, alone or for this model.
    """
    options = replace(options or DecodingOptions(), **overrides)
    if isinstance(mel, EncodedAudio):
        return DecodingTask(model, options).run(mel)
    single = mel.ndim == 2
    task = DecodingTask(model, options)  # reject bad options before the encoder runs
    results = task.run(EncodedAudio.from_mel(model, mel[None] if single else mel))
    return results[0] if single else results


def decode_with_fallback(
    model: Whisper,
    audio: EncodedAudio,
    ladder: Sequence[DecodingOptions],
    policy: FallbackPolicy,
    *,
    prompt: Sequence[int] = (),
) -> list[DecodingResult]:
    """Decode every window with the first options of ``ladder`` whose result does not fail.

    The result of the last options is taken as it is. Each window of a batch climbs the ladder alone.

    Args:
        model: as made by ``load_model``.
        audio: the encoded windows.
        ladder: the options for each temperature, as made by ``options_ladder``.
        policy: the thresholds of failure.
        prompt: tokens said before the windows.
    """
    results: dict[int, DecodingResult] = {}
    open_rows = list(range(audio.rows))
    for options in ladder:
        decoded = decode(model, audio.select(open_rows), replace(options, prompt=tuple(prompt)))
        results.update(zip(open_rows, decoded, strict=True))
        open_rows = [row for row in open_rows if policy.has_failed(results[row])]
        if not open_rows:
            break
    return [results[row] for row in range(audio.rows)]
