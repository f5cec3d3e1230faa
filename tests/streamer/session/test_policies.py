"""The policies of commit as state machines: what each says is stable, and what it keeps as the draft."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.jobs import DecodedWord
from whisper_stream.streamer.session.policies import (
    AlignAtt,
    CommitPolicy,
    Either,
    LocalAgreement,
    make_policy,
)


def word(text: str, end: float, *, attended: float = 0.0, probability: float = 1.0) -> DecodedWord:
    return DecodedWord(
        text=text,
        tokens=tuple(ord(letter) for letter in text),
        start=end - 0.5,
        end=end,
        probability=probability,
        attended=attended,
    )


def texts(words: Sequence[DecodedWord]) -> list[str]:
    return [word.text for word in words]


def test_words_heard_well_before_the_end_are_stable_at_once() -> None:
    policy = AlignAtt(margin=0.5)
    hypothesis = [word(" a", 1.0), word(" b", 2.0), word(" c", 2.6)]
    assert policy.add(hypothesis, 2.5) == 2  # " b" ends just at the limit
    assert texts(policy.latest) == [" a", " b", " c"]
    policy.committed(2)
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
    policy.committed(1)
    assert texts(policy.latest) == [" b"]


def test_either_takes_what_is_said_twice_before_it_lies_far_back() -> None:
    policy = pair(9.0)
    assert policy.add([word(" a", 1.0), word(" b", 2.5)], 3.0) == 0
    assert policy.add([word(" a", 1.0), word(" c", 2.5)], 3.5) == 1


def test_either_tells_both_what_is_committed() -> None:
    """Else the agreement would be sought between hypotheses that begin at different words."""
    policy = pair(1.0)
    assert policy.add([word(" a", 1.0), word(" b", 2.5)], 3.0) == 1
    policy.committed(1)
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


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        ValueError, match="policy must be one of local-agreement, align-att, either"
    ):
        StreamConfig(policy="guess")  # type: ignore[arg-type]


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
        policy.committed(count)
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
