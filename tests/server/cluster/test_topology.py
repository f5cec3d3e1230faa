"""Owners of streams, and the only process of a daemon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.cluster.topology import SingleProcess, new_id, owner_of


@given(st.integers(1, 64), st.data())
def test_the_owner_of_a_stream_can_be_read_from_its_id(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    name = new_id(number, count)
    assert len(name) == 16 and int(name, 16) >= 0
    assert owner_of(name, count) == number
    for other in (1, 2, 5):
        assert owner_of(name, other) in range(other)


@pytest.mark.parametrize("name", ["", "zz12", "é", "--"])
def test_what_is_no_id_has_no_owner(name: str) -> None:
    assert owner_of(name, 4) is None


def test_the_only_process_owns_everything() -> None:
    alone = SingleProcess()
    assert alone.owns(alone.new_id()) and alone.owns("not an id of ours")
    alone.publish(3, 4)
    assert alone.open == (3, 4)
