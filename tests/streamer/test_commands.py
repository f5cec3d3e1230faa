"""Commands of a stream: what changes of options do, and that a journal gives back what it was given."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.commands import (
    Audio,
    Command,
    Configure,
    EndOfStream,
    Flush,
    JobDone,
    JobFailed,
    JobStarted,
    Tick,
)
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.jobs import DecodedWord, DecodeResult

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORD = st.builds(
    DecodedWord,
    text=TEXT,
    tokens=st.lists(st.integers(0, 51_864), max_size=3).map(tuple),
    start=st.floats(0, 30),
    end=st.floats(0, 30),
    probability=st.floats(0, 1),
)
COMMANDS = st.one_of(
    st.builds(Audio, data=st.binary(max_size=100)),
    st.builds(Flush, id=TEXT),
    st.builds(
        Configure,
        language=st.sampled_from([None, "de", msgspec.UNSET]),
        languages=st.sampled_from([(), ("de", "en"), msgspec.UNSET]),
        prompt=TEXT | st.just(msgspec.UNSET),
        endpoint_silence=st.floats(0.1, 10) | st.just(msgspec.UNSET),
    ),
    st.just(EndOfStream()),
    st.just(Tick()),
    st.builds(JobStarted, samples=st.integers(0, 480_000)),
    st.builds(
        JobDone,
        result=st.builds(
            DecodeResult,
            tokens=st.just(()),
            words=st.lists(WORD, max_size=3).map(tuple),
            language=st.just("en"),
        ),
    ),
    st.builds(JobFailed, reason=TEXT),
)


@given(st.lists(COMMANDS, max_size=10))
def test_what_is_written_down_is_read_back(commands: list[Command]) -> None:
    for command in commands:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Command) == command


def test_every_command_is_covered() -> None:
    kinds = {Audio, Flush, Configure, EndOfStream, Tick, JobStarted, JobDone, JobFailed}
    assert kinds == set(get_args(Command))


def test_changes_leave_the_other_options_alone() -> None:
    config = StreamConfig(language="de", prompt="Anna", hotwords="Kim", endpoint_silence=0.4)
    changed = Configure(language=None, hotwords="").revise(config)
    assert (changed.language, changed.hotwords) == (None, "")
    assert (changed.prompt, changed.endpoint_silence) == ("Anna", 0.4)
    assert Configure().revise(config) == config


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="languages has .xx."):
        Configure(languages=("xx",)).revise(StreamConfig())
