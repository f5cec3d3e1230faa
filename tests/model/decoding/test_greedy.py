"""Greedy decoding: a draft never changes the result; guards, limits and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from whisper_stream.model.decoding.greedy import GreedyOutput, GreedyRow, GreedyRules, decode_greedy
from whisper_stream.model.whisper.cache import CrossCache
from whisper_stream.model.whisper.dims import ModelDimensions
from whisper_stream.model.whisper.mel import log_mel_spectrogram
from whisper_stream.model.whisper.network import TextDecoder, Whisper
from whisper_stream.model.whisper.tokenizer import get_tokenizer

VOCABULARY = 40
EOT, NO_SPEECH, BLANK = 38, 39, 5
START = (36, 37)
DIMS = ModelDimensions(
    n_mels=4,
    n_audio_ctx=20,
    n_audio_state=16,
    n_audio_head=2,
    n_audio_layer=1,
    n_vocab=VOCABULARY,
    n_text_ctx=48,
    n_text_state=16,
    n_text_head=2,
    n_text_layer=2,
)


@cache
def small(seed: int) -> tuple[Whisper, CrossCache]:
    """A random model, and the audio of one window. Its projection is not tied to the embedding:
    a tied one says the same token for ever."""
    generator = torch.Generator().manual_seed(seed)
    model = Whisper(DIMS).eval()
    assert isinstance(model.decoder, TextDecoder)
    model.decoder.projection.weight = torch.nn.Parameter(torch.empty(VOCABULARY, 16))
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    features = torch.randn(1, 20, 16, generator=generator)
    return model, model.decoder.audio_cache(features)


def small_rules(*suppressed: int) -> GreedyRules:
    barred = torch.zeros(VOCABULARY)
    barred[[*START, NO_SPEECH, *suppressed]] = -torch.inf
    return GreedyRules(suppressed=barred, blank=(BLANK, EOT), eot=EOT, no_speech=NO_SPEECH)


@torch.inference_mode()
def plain(seed: int, initial: tuple[int, ...], most: int, *, empty: bool = False) -> list[int]:
    """Decoding by its definition: no cache, no draft, one token after another."""
    model, audio = small(seed)
    rules = small_rules()
    tokens: list[int] = []
    while len(tokens) < most:
        logits = uncached(model, audio, [*initial, *tokens])[-1] + rules.suppressed
        if not tokens and not empty:
            logits[[BLANK, EOT]] = -torch.inf
        best = int(logits.argmax())
        if best == EOT:
            break
        tokens.append(best)
    return tokens


@torch.inference_mode()
def uncached(model: Whisper, audio: CrossCache, tokens: list[int]) -> Tensor:
    """Logits [T, V] of a whole sequence from an empty cache."""
    positions = torch.arange(len(tokens))[None]
    own = model.decoder.new_cache(1)
    hidden, _ = model.decoder(torch.tensor([tokens]), positions, own, audio, start=0)
    return model.decoder.logits(hidden[0])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many threads only get in each other's way on matrices this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
@torch.inference_mode()
def greedy(seed: int, draft: tuple[int, ...] = (), *, most: int = 30) -> GreedyOutput:
    model, audio = small(seed)
    return decode_greedy(
        model, audio, START, small_rules(), sot_index=0, draft=draft, max_tokens=most
    )


SEEDS = st.integers(0, 15)
TOKENS = st.integers(0, VOCABULARY - 1)  # end-of-text and special ones too


def assert_same(drafted: GreedyOutput, alone: GreedyOutput) -> None:
    assert drafted.tokens == alone.tokens
    assert drafted.looped == alone.looped
    assert drafted.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert drafted.no_speech_prob == pytest.approx(alone.no_speech_prob, abs=1e-6)
    assert drafted.scores is not None
    assert alone.scores is not None
    torch.testing.assert_close(drafted.scores, alone.scores, rtol=0, atol=1e-3)


def test_the_random_models_are_of_all_kinds() -> None:
    """The properties below would be idle if every text were short, or a loop."""
    outputs = [greedy(seed) for seed in range(16)]
    assert len({len(output.tokens) for output in outputs}) > 3
    assert any(output.looped for output in outputs)
    assert any(not output.looped and len(set(output.tokens)) > 4 for output in outputs)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, most=st.integers(1, 40), draft=st.lists(TOKENS, max_size=60))
def test_any_draft_gives_the_text_of_none(seed: int, most: int, draft: list[int]) -> None:
    assert_same(greedy(seed, tuple(draft), most=most), greedy(seed, most=most))


@settings(deadline=None, max_examples=60)
@given(
    seed=SEEDS,
    most=st.integers(1, 46),
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(-1, VOCABULARY - 1)), max_size=4),
    more=st.lists(TOKENS, max_size=10),
    repeats=st.integers(1, 4),
)
def test_a_true_draft_corrupted_gives_the_text_of_none(
    seed: int, most: int, changes: list[tuple[int, int]], more: list[int], repeats: int
) -> None:
    draft = list(greedy(seed, most=46).tokens) * repeats
    for at, token in changes:
        if at < len(draft):
            if token < 0:
                del draft[at]
            else:
                draft[at] = token
    assert_same(greedy(seed, (*draft, *more), most=most), greedy(seed, most=most))


@pytest.mark.parametrize("seed", range(16))
def test_equals_decoding_by_definition(seed: int) -> None:
    output = greedy(seed, most=25)
    expected = plain(seed, START, 25)
    if output.looped:
        assert output.tokens == expected[: len(output.tokens)]
    else:
        assert output.tokens == expected


@pytest.mark.parametrize("seed", range(6))
def test_logprobs_and_rows_equal_an_uncached_run(seed: int) -> None:
    model, audio = small(seed)
    output = greedy(seed, most=10)
    logits = uncached(model, audio, [*START, *output.tokens]) + small_rules().suppressed
    expected = logits.log_softmax(-1)
    first = logits[len(START) - 1].clone()
    first[[BLANK, EOT]] = -torch.inf
    expected[len(START) - 1] = first.log_softmax(-1)
    chosen = [*output.tokens, EOT][: len(output.logprobs)]
    rows = range(len(START) - 1, len(START) - 1 + len(chosen))
    assert output.logprobs == pytest.approx(
        [expected[row, token].item() for row, token in zip(rows, chosen, strict=True)], abs=1e-4
    )
    assert len(output.logprobs) in (len(output.tokens), len(output.tokens) + 1)
    assert output.scores is not None
    heads = sum(len(heads) for heads in model.heads_by_layer.values())
    assert output.scores.shape == (heads, len(START) + len(output.tokens), 20)


@pytest.mark.parametrize("most", [0, 1, 7, 46, 500])
def test_never_more_than_max_tokens_nor_than_fit(most: int) -> None:
    for seed in range(16):
        for draft in ((), tuple(greedy(seed).tokens)):
            assert len(greedy(seed, draft, most=most).tokens) <= min(most, DIMS.n_text_ctx - 2)


def test_an_end_at_once_must_be_allowed() -> None:
    model, audio = small(0)
    everything_else = small_rules(*(t for t in range(VOCABULARY) if t not in (EOT, 7)))
    with torch.inference_mode():
        barred = decode_greedy(model, audio, START, everything_else, sot_index=0, max_tokens=3)
        assert barred.tokens[0] == 7
        # only the end is left
        only_end = small_rules(*(t for t in range(VOCABULARY) if t != EOT))
        free = decode_greedy(model, audio, START, only_end, sot_index=0, allow_empty=True)
    assert (free.tokens, free.logprobs) == ([], [0.0])


def test_a_loop_is_stopped_and_said() -> None:
    model, audio = small(0)
    one_word = small_rules(*(t for t in range(VOCABULARY) if t != 7))
    with torch.inference_mode():
        output = decode_greedy(model, audio, START, one_word, sot_index=0, max_tokens=40)
    assert output.looped
    assert set(output.tokens) == {7}
    assert len(output.tokens) < 20


def test_sampling_is_repeatable_and_ignores_the_draft() -> None:
    model, audio = small(3)

    def sample(draft: tuple[int, ...], seed: int) -> list[int]:
        with torch.inference_mode():
            return decode_greedy(
                model,
                audio,
                START,
                small_rules(),
                sot_index=0,
                draft=draft,
                max_tokens=20,
                temperature=1.0,
                generator=torch.Generator().manual_seed(seed),
            ).tokens

    assert sample((), 1) == sample((1, 2, 3), 1)
    assert len({tuple(sample((), seed)) for seed in range(5)}) > 1


# -- Real weights

ENGLISH = get_tokenizer(False)


@pytest.fixture(scope="module")
def speech(tiny_en: Whisper, jfk: NDArray[np.float32]) -> tuple[Whisper, CrossCache]:
    with torch.inference_mode():
        mel = log_mel_spectrogram(np.pad(jfk[:80_000], (0, 32_000)))[None]
        return tiny_en, tiny_en.decoder.audio_cache(tiny_en.embed_audio(mel))


@torch.inference_mode()
def transcribe(speech: tuple[Whisper, CrossCache], draft: list[int]) -> GreedyOutput:
    model, audio = speech
    barred = torch.zeros(model.dims.n_vocab)
    barred[[*ENGLISH.non_speech_tokens, *range(ENGLISH.eot + 1, model.dims.n_vocab)]] = -torch.inf
    rules = GreedyRules(
        suppressed=barred,
        blank=(*ENGLISH.encode(" "), ENGLISH.eot),
        eot=ENGLISH.eot,
        no_speech=ENGLISH.no_speech,
    )
    initial = ENGLISH.sot_sequence_including_notimestamps
    return decode_greedy(model, audio, initial, rules, sot_index=0, draft=draft, max_tokens=40)


@pytest.fixture(scope="module")
def undrafted(speech: tuple[Whisper, CrossCache]) -> GreedyOutput:
    output = transcribe(speech, [])
    assert ENGLISH.decode(output.tokens).startswith(" And so my fellow Americans")
    assert output.passes == len(output.tokens) + 1
    return output


def test_a_true_draft_takes_one_pass(
    speech: tuple[Whisper, CrossCache], undrafted: GreedyOutput
) -> None:
    output = transcribe(speech, undrafted.tokens)
    assert_same(output, undrafted)
    assert (output.accepted, output.passes) == (len(undrafted.tokens), 1)


@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_corrupted_drafts_of_real_speech(
    speech: tuple[Whisper, CrossCache], undrafted: GreedyOutput, data: st.DataObject
) -> None:
    draft = list(undrafted.tokens)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(draft) - 1))
        kind = data.draw(st.sampled_from(["change", "drop", "insert"]))
        if kind == "drop" and len(draft) > 1:
            del draft[at]
        else:
            draft[at : at + (kind == "change")] = [data.draw(st.integers(0, 50_000))]
    output = transcribe(speech, draft)
    assert_same(output, undrafted)
    assert output.passes <= undrafted.passes


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, 7), max_size=20),
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_a_draft_changes_nothing_however_it_is_fed(
    seed: int, draft: list[int], most: int, width: int
) -> None:
    """The state machine alone, on a language of eight tokens of which the last ends the text."""
    generator = torch.Generator().manual_seed(seed)
    following = torch.randn(8, 8, generator=generator).argmax(dim=-1).tolist()

    def run(guess: Sequence[int]) -> GreedyRow:
        row = GreedyRow([0], eot=7, context=40, draft=guess, max_tokens=most)
        while not row.done:
            fed = row.feed(width)
            assert row.passes == 0 or len(fed) <= width
            answers = fed if row.passes else fed[len(row.initial) - 1 :]
            row.take([following[token] for token in answers], [-0.1] * len(answers))
        return row

    drafted, alone = run(draft), run([])
    assert (drafted.tokens, drafted.looped, drafted.ended) == (
        alone.tokens,
        alone.looped,
        alone.ended,
    )
    assert drafted.passes <= alone.passes
