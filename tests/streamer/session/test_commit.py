"""The words of a hypothesis: which are committed by each policy, and which are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.audio.vad import WebRtcDetector
from whisper_stream.streamer.config import SAMPLE_RATE, PolicyName, StreamConfig
from whisper_stream.streamer.engine.backend import BackendConfig
from whisper_stream.streamer.engine.cpu_backend import CpuBackend
from whisper_stream.streamer.events import Commit, Event, Partial
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult
from whisper_stream.streamer.session.commit import (
    AlignAtt,
    CommitPolicy,
    Either,
    HypothesisTracker,
    LocalAgreement,
    count_common_words,
    make_policy,
)
from whisper_stream.streamer.session.session import StreamSession
from whisper_stream.streamer.session.transcript import CommittedText
from whisper_stream.streamer.session.window import Window
from whisper_stream.streamer.simulator import simulate

from ...helpers.scripted import (
    ENGLISH,
    FakeCodec,
    Played,
    Samples,
    committed_words,
    scripted,
    word_text,
)

POLICY_NAMES: tuple[PolicyName, ...] = ("local-agreement", "align-att", "either")
LONG = scripted([0.1] * 60, tail=4.0)


def word(text: str, end: float, *, attended: float = 0.0, probability: float = 1.0) -> DecodedWord:
    return DecodedWord(
        text=text,
        tokens=tuple(ord(letter) for letter in text),
        start=end - 0.5,
        end=end,
        probability=probability,
        attended=attended,
    )


# LocalAgreement


def letters(text: str, *, probability: float = 1.0) -> tuple[DecodedWord, ...]:
    """One word a letter, one second each."""
    return tuple(
        DecodedWord(
            text=letter,
            tokens=(ord(letter),),
            start=float(index),
            end=index + 1.0,
            probability=probability,
        )
        for index, letter in enumerate(text)
    )


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [([], 0), (["abc"], 3), (["abc", "abd"], 2), (["abc", ""], 0), (["ab", "abc", "abd"], 2)],
)
def test_common_words(hypotheses: list[str], expected: int) -> None:
    assert count_common_words([letters(text) for text in hypotheses]) == expected


def test_same_text_of_other_tokens_is_another_word() -> None:
    (one,) = letters("a")
    other = DecodedWord(text="a", tokens=(1, 2), start=0.0, end=1.0, probability=1.0)
    assert count_common_words([[one], [other]]) == 0


@given(
    n=st.integers(2, 4),
    hypotheses=st.lists(st.text("ab", max_size=6), min_size=1, max_size=8),
)
def test_what_the_last_n_have_in_common_is_stable(n: int, hypotheses: list[str]) -> None:
    agreement = LocalAgreement(n, margin=0.0)
    for count, text in enumerate(hypotheses, 1):
        stable = agreement.add(letters(text), 100.0)
        last = hypotheses[max(0, count - n) : count]
        if count < n:
            assert stable == 0
        else:
            assert stable == next(
                (i for i, letters in enumerate(zip(*last, strict=False)) if len(set(letters)) > 1),
                min(len(hypothesis) for hypothesis in last),
            )


def test_committed_words_leave_the_history() -> None:
    agreement = LocalAgreement(2, margin=0.0)
    agreement.add(letters("abc"), 10.0)
    assert agreement.add(letters("abd"), 10.0) == 2
    agreement.commit(2)
    assert [word.text for word in agreement.latest] == ["d"]
    assert agreement.add(letters("de"), 10.0) == 1


@pytest.mark.parametrize(("audio", "stable"), [(3.5, 3), (3.2, 2), (2.3, 1), (0.5, 0)])
def test_words_near_the_end_of_the_audio_wait(audio: float, stable: int) -> None:
    agreement = LocalAgreement(2, margin=0.4)
    agreement.add(letters("abc"), audio)
    assert agreement.add(letters("abc"), audio) == stable


def test_doubtful_words_wait_longer_and_hold_back_what_follows() -> None:
    agreement = LocalAgreement(2, margin=0.1, probability=0.5, doubtful_margin=2.0)
    mixed = (*letters("a"), *letters("ab", probability=0.2)[1:], *letters("abc")[2:])
    agreement.add(mixed, 3.5)
    assert agreement.add(mixed, 3.5) == 1
    assert agreement.add(mixed, 4.5) == 3


def test_reset_forgets_all_hypotheses() -> None:
    agreement = LocalAgreement(2, margin=0.0)
    agreement.add(letters("abc"), 10.0)
    agreement.reset()
    assert agreement.latest == ()
    assert agreement.add(letters("abc"), 10.0) == 0


def test_one_hypothesis_agrees_with_nobody() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        LocalAgreement(1, margin=0.0)


# The other policies


def texts(words: Sequence[DecodedWord]) -> list[str]:
    return [word.text for word in words]


def test_words_heard_well_before_the_end_are_stable_at_once() -> None:
    policy = AlignAtt(margin=0.5)
    hypothesis = [word(" a", 1.0), word(" b", 2.0), word(" c", 2.6)]
    assert policy.add(hypothesis, 2.5) == 2  # " b" ends just at the limit
    assert texts(policy.latest) == [" a", " b", " c"]
    policy.commit(2)
    assert texts(policy.latest) == [" c"]


def test_a_word_that_attends_to_the_end_holds_back_those_after_it() -> None:
    policy = AlignAtt(margin=0.5)
    hypothesis = [word(" a", 1.0), word(" b", 1.5, attended=2.9), word(" c", 2.0)]
    assert policy.add(hypothesis, 3.0) == 1
    assert policy.add(hypothesis, 3.4) == 3


def test_attention_elsewhere_does_not_make_a_word_end_sooner() -> None:
    policy = AlignAtt(margin=0.5)
    assert policy.add([word(" a", 2.9, attended=0.2)], 3.0) == 0


def test_nothing_is_stable_in_an_empty_hypothesis() -> None:
    for policy in (AlignAtt(margin=0.0), pair(0.0)):
        assert policy.add([], 3.0) == 0
        assert policy.latest == ()


def pair(margin: float) -> Either:
    return Either(LocalAgreement(2, margin=0.0), AlignAtt(margin=margin))


def test_either_takes_what_was_heard_early_before_it_is_said_twice() -> None:
    policy = pair(1.0)
    assert policy.add([word(" a", 1.0), word(" b", 2.5)], 3.0) == 1
    policy.commit(1)
    assert texts(policy.latest) == [" b"]


def test_either_takes_what_is_said_twice_before_it_lies_far_back() -> None:
    policy = pair(9.0)
    assert policy.add([word(" a", 1.0), word(" b", 2.5)], 3.0) == 0
    assert policy.add([word(" a", 1.0), word(" c", 2.5)], 3.5) == 1


def test_either_tells_both_what_is_committed() -> None:
    """Else the agreement would be sought between hypotheses that begin at different words."""
    policy = pair(1.0)
    assert policy.add([word(" a", 1.0), word(" b", 2.5)], 3.0) == 1
    policy.commit(1)
    assert policy.add([word(" b", 2.5), word(" c", 3.2)], 3.3) == 1


def test_a_reset_forgets_all() -> None:
    for policy in (AlignAtt(margin=9.0), pair(9.0)):
        policy.add([word(" a", 1.0)], 3.0)
        policy.reset()
        assert policy.latest == ()
        assert policy.add([word(" a", 1.0)], 3.0) == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("local-agreement", LocalAgreement), ("align-att", AlignAtt), ("either", Either)],
)
def test_the_configuration_chooses(name: str, kind: type) -> None:
    config = StreamConfig(policy=name)  # type: ignore[arg-type]
    assert type(make_policy(config)) is kind


WORDS = st.builds(
    word,
    st.sampled_from([" a", " b", " c"]),
    st.floats(0.0, 5.0),
    attended=st.floats(0.0, 5.0),
    probability=st.floats(0.0, 1.0),
)
POLICIES = st.builds(
    StreamConfig,
    policy=st.sampled_from(["local-agreement", "align-att", "either"]),
    attention_margin=st.floats(0.01, 2.0),
    agreement=st.integers(2, 4),
).map(make_policy)


@given(
    policy=POLICIES,
    steps=st.lists(
        st.tuples(st.lists(WORDS, max_size=6), st.floats(0.0, 6.0), st.floats(0.0, 1.0)),
        max_size=8,
    ),
)
def test_never_more_words_than_said_and_the_draft_is_what_is_left(
    policy: CommitPolicy, steps: list[tuple[list[DecodedWord], float, float]]
) -> None:
    for words, audio_seconds, share in steps:
        stable = policy.add(words, audio_seconds)
        assert 0 <= stable <= len(words)
        assert policy.latest == tuple(words)
        count = round(share * stable)  # the caller may commit less
        policy.commit(count)
        assert policy.latest == tuple(words[count:])


@given(
    words=st.lists(WORDS, max_size=6),
    seconds=st.floats(0.0, 6.0),
    near=st.floats(0.0, 2.0),
    more=st.floats(0.0, 2.0),
)
def test_a_wider_margin_never_commits_more(
    words: list[DecodedWord], seconds: float, near: float, more: float
) -> None:
    counts = [AlignAtt(margin=margin).add(words, seconds) for margin in (near, near + more)]
    assert counts[0] >= counts[1]


# Commits and partials of one window

WINDOW = Window(16_000, 80_000, endpoint=False, cut=False)  # four seconds


ONE, TWO, THREE = word(" one", 1.0), word(" two", 1.5), word(" three", 2.0)


def kinds_of(events: list[Event]) -> list[tuple[str, str]]:
    kinds = [(type(e).__name__, e.words) for e in events if isinstance(e, (Commit, Partial))]
    return [(kind, "".join(each.text for each in words)) for kind, words in kinds]


def make_tracker(show_margin: float = 0.15) -> tuple[HypothesisTracker, CommittedText]:
    config = replace(ENGLISH, show_margin=show_margin)
    committed = CommittedText(config, FakeCodec())
    return HypothesisTracker(config, committed), committed


def test_what_two_hypotheses_share_is_committed_and_the_rest_shown() -> None:
    tracker, committed = make_tracker()
    assert kinds_of(tracker.add((ONE, TWO), WINDOW)) == [("Partial", " one two")]
    assert kinds_of(tracker.add((ONE, THREE), WINDOW)) == [
        ("Commit", " one"),
        ("Partial", " three"),
    ]
    assert tracker.draft == THREE.tokens and committed.prefix == ONE.tokens


def test_positions_are_those_of_the_stream() -> None:
    tracker, _ = make_tracker()
    (partial,) = tracker.add((ONE,), WINDOW)
    assert isinstance(partial, Partial)
    assert (partial.words[0].start_sample, partial.words[0].end_sample) == (24_000, 32_000)


def test_a_forgotten_hypothesis_agrees_with_nothing() -> None:
    tracker, committed = make_tracker()
    tracker.add((ONE,), WINDOW)
    tracker.reset()
    assert kinds_of(tracker.add((ONE,), WINDOW)) == []  # the same is shown already
    assert committed.prefix == ()


def test_a_full_window_commits_its_first_words_and_an_utterance_all() -> None:
    tracker, committed = make_tracker()
    assert kinds_of(tracker.commit_first((ONE, TWO), 1, WINDOW)) == [
        ("Commit", " one"),
        ("Partial", " two"),
    ]
    assert kinds_of(tracker.commit_all((TWO, THREE), WINDOW)) == [
        ("Commit", " two three"),
        ("Partial", ""),
    ]
    assert committed.count == 3 and tracker.draft == ()


def run(tracker: HypothesisTracker, *steps: tuple[float, Sequence[tuple[str, float]]]) -> list[str]:
    """Give (seconds of the window, words with their ends) -> the partial that the client sees after each step."""
    shown, seen = "", []
    for seconds, pairs in steps:
        window = Window(0, round(seconds * 16_000), endpoint=False, cut=False)
        for event in tracker.add([word(text, end) for text, end in pairs], window):
            if isinstance(event, Partial):
                shown = "".join(each.text for each in event.words)
        seen.append(shown)
    return seen


def show_only(margin: float) -> HypothesisTracker:
    """A tracker that never commits: every word ends too late for that."""
    config = replace(ENGLISH, show_margin=margin, commit_margin=9.0)
    return HypothesisTracker(config, CommittedText(config, FakeCodec()))


def test_words_at_the_end_of_the_audio_are_held_back_with_all_that_follow() -> None:
    assert run(show_only(0.25), (2.0, [("a", 1.0), ("b", 1.75), ("c", 1.9)])) == ["ab"]
    # nobody sees a sentence with a hole
    assert run(show_only(0.25), (2.0, [("a", 1.0), ("b", 1.9), ("c", 1.0)])) == ["a"]
    assert run(show_only(0.0), (2.0, [("a", 1.0), ("b", 2.0)])) == ["ab"]


def test_a_word_once_shown_stays_while_it_is_heard() -> None:
    seen = run(
        show_only(0.25),
        (2.0, [("a", 1.0), ("b", 1.5)]),
        (2.4, [("a", 1.0), ("b", 2.4), ("c", 2.4)]),  # its end has moved up to the end of the audio
        (2.8, [("a", 1.0), ("x", 2.8)]),  # another word in its place has to wait like any other
    )
    assert seen == ["ab", "ab", "a"]


def test_after_a_reset_no_word_counts_as_shown() -> None:
    tracker = show_only(0.25)
    assert run(tracker, (2.0, [("a", 1.0)])) == ["a"]
    tracker.reset()
    window = Window(0, 32_000, endpoint=False, cut=False)
    assert kinds_of(tracker.add([word("a", 1.9)], window)) == [("Partial", "")]


def test_a_committed_word_leaves_those_that_were_shown() -> None:
    tracker, committed = make_tracker(0.25)
    steps = [(2.0, [(" a", 1.0), (" b", 1.5)]), (2.4, [(" a", 1.0), (" b", 2.4)])]
    assert run(tracker, *steps) == [" a b", " b"]  # it is near the end now, but was shown before
    assert committed.count == 1
    assert run(tracker, (2.5, [(" b", 2.5)])) == [" b"]


@given(
    margin=st.floats(0.0, 1.0),
    steps=st.lists(
        st.tuples(
            st.integers(2, 64).map(lambda sixteenths: sixteenths / 16),
            st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.5, 4.0)), max_size=5),
        ),
        max_size=6,
    ),
)
def test_the_words_shown_are_the_first_of_the_hypothesis(
    margin: float, steps: list[tuple[float, list[tuple[str, float]]]]
) -> None:
    for (seconds, pairs), seen in zip(steps, run(show_only(margin), *steps), strict=True):
        text = "".join(letter for letter, _ in pairs)
        assert text.startswith(seen)
        # and at least all that end early enough
        early = next((i for i, (_, end) in enumerate(pairs) if end > seconds - margin), len(pairs))
        assert len(seen) >= early


# Every policy in a stream


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_commits_every_word_in_time(policy: PolicyName) -> None:
    stream = Played(replace(ENGLISH, policy=policy)).play(LONG.audio).finish()
    assert [word.text for word in stream.ledger.words] == [
        word_text(word) for word, _ in LONG.words
    ]
    assert len(stream.of(Commit)) > 20


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_drafts_change_nothing_with_any_policy(
    tiny_en: Whisper, jfk: Samples, policy: PolicyName
) -> None:
    torch.manual_seed(0)
    backend = CpuBackend(tiny_en, BackendConfig(endpoint_context="trimmed", endpoint_beams=2))
    config = StreamConfig(language="en", policy=policy, update_interval=0.7)

    def run(audio: Samples, *, drafts: bool) -> tuple[list[Event], int]:
        session = StreamSession(config, WebRtcDetector(), backend.tokenizer)
        steps = 0

        def decode(job: DecodeJob) -> DecodeResult:
            nonlocal steps
            (result,) = backend.decode([job if drafts else replace(job, draft=())])
            steps += result.steps
            return result

        events = [timed.event for timed in simulate(session, [audio], decode)]
        return events, steps

    audio = jfk[: 5 * SAMPLE_RATE]
    ours, steps = run(audio, drafts=True)
    plain, plain_steps = run(audio, drafts=False)
    assert [(w.text, w.start_sample) for w in committed_words(ours)] == [
        (w.text, w.start_sample) for w in committed_words(plain)
    ]
    assert len(committed_words(ours)) > 5
    assert steps < plain_steps
