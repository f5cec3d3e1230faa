"""One update of a live stream on a GPU, beside what other implementations take for the same.

    python benchmarks/gpu/update.py --models large-v3-turbo large-v3

The window has 10 s of audio; the text before it is 40 tokens, 8 are committed inside it, and 20 of the 23 after
these were guessed right by the update before. What comes out are the tokens and the times of all words. The peers
have no use for a guess, and know no shorter windows than 30 s: they decode the 23 tokens one by one. They are
measured where they are installed, in the same run; weights are random, so the texts are given and their work is
done all the same. Times are on the clock, from audio to words, medians. Prints a line for every model and, last,
one JSON object.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rig import openai_model, parser, random_model, report, transformers_config
from scripted import ScriptedBackend
from whisper_stream.model.weights.registry import lookup
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.jobs import DecodeJob

RATE = 16_000
SECONDS = 10
PROMPT, PREFIX, GUESSED, TEXT = 40, 8, 20, 23  # tokens
BATCHES = (1, 8, 32)
WORDS = list(range(300, 300 + PROMPT + PREFIX + TEXT))
NOISE = np.random.default_rng(0).normal(0, 0.05, SECONDS * RATE).astype(np.float32)


def median_ms(work: Callable[[], object], rounds: int = 15) -> float:
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def ours(model: Whisper) -> dict[str, float]:
    text = WORDS[PROMPT + PREFIX :]
    backend = ScriptedBackend(model, slots=max(BATCHES), searches=1, script=lambda job: text)
    job = DecodeJob(
        audio=NOISE,
        language="en",
        prompt=tuple(WORDS[:PROMPT]),
        prefix=tuple(WORDS[PROMPT : PROMPT + PREFIX]),
        draft=tuple(text[:GUESSED]),
    )
    (result,) = backend.decode([job])
    assert list(result.tokens) == text and len(result.words) > 1
    return {
        f"ours_{batch}": round(median_ms(lambda: backend.decode([job] * batch)) / batch, 2)  # noqa: B023
        for batch in BATCHES
    }


def openai_whisper(model: Whisper) -> float | None:
    try:
        import whisper
        from whisper.timing import find_alignment
        from whisper.tokenizer import get_tokenizer
    except ImportError:
        return None
    peer = openai_model(model)
    tokenizer = get_tokenizer(True, num_languages=peer.num_languages, language="en")
    options = whisper.DecodingOptions(
        language="en",
        prompt=WORDS[:PROMPT],
        prefix=WORDS[PROMPT : PROMPT + PREFIX],
        sample_len=TEXT,
        without_timestamps=True,
    )

    def update() -> object:
        audio = torch.from_numpy(whisper.pad_or_trim(NOISE)).cuda()
        mel = whisper.log_mel_spectrogram(audio, model.dims.n_mels)
        result = whisper.decode(peer, mel, options)
        return find_alignment(
            peer, tokenizer, result.tokens or WORDS[-TEXT:], mel, 2 * 50 * SECONDS
        )

    return median_ms(update, rounds=7)


def transformers(model: Whisper) -> float | None:
    try:
        from transformers import (
            GenerationConfig,
            WhisperFeatureExtractor,
            WhisperForConditionalGeneration,
        )
    except ImportError:
        return None
    dims = model.dims
    peer = (
        WhisperForConditionalGeneration(transformers_config(model)).to("cuda", model.dtype).eval()
    )
    peer.generation_config = GenerationConfig(
        **{
            "alignment_heads": [list(pair) for pair in lookup(model.name).alignment_heads],
            "max_new_tokens": TEXT,
            "min_new_tokens": TEXT,
            "eos_token_id": dims.n_vocab - 1,
            "pad_token_id": dims.n_vocab - 1,
            "decoder_start_token_id": 50258,
            "is_multilingual": False,
            "no_timestamps_token_id": 50364,
            "return_timestamps": False,
        }
    )
    extract = WhisperFeatureExtractor(feature_size=dims.n_mels)
    ids = torch.tensor([[50258, 50259, 50360, 50364, *WORDS[: PROMPT + PREFIX]]], device="cuda")

    def update() -> object:
        given: Any = extract(NOISE, sampling_rate=RATE, return_tensors="pt", device="cuda")
        features = given.input_features.to("cuda", model.dtype)
        return peer.generate(features, decoder_input_ids=ids, return_token_timestamps=True)

    return median_ms(update, rounds=7)


PEERS = {"transformers": transformers, "openai-whisper": openai_whisper}


@torch.inference_mode()
def main() -> int:
    args = parser(__doc__).parse_args()
    rows: list[dict[str, object]] = []
    for name in args.models:
        model = random_model(name)
        row: dict[str, object] = {"model": name, **ours(model)}
        for peer, measured in PEERS.items():
            took = measured(model)
            torch.cuda.empty_cache()
            if took is not None:
                row[peer] = round(took, 1)
        rows.append(row)
        print(row, flush=True)
        del model
        torch.cuda.empty_cache()
    return report({"benchmark": "gpu_update", "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
