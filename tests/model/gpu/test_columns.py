"""Tables with named columns, there and back."""

from __future__ import annotations

import numpy as np
import torch
from whisper_stream.model.gpu.columns import columns, fetch, send, words

ROW = np.dtype([("tokens", np.int32, (3,)), ("slot", np.int32), ("temperature", np.float32)])


def test_columns_are_those_of_the_table() -> None:
    table = np.zeros(2, ROW)
    table["tokens"] = [[1, 2, 3], [4, 5, 6]]
    table["slot"] = [7, 8]
    table["temperature"] = [0.25, -1.5]
    cut = columns(send(words(table), torch.device("cpu")), ROW)
    assert list(cut) == ["tokens", "slot", "temperature"]
    assert cut["tokens"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cut["slot"].tolist() == [7, 8]
    assert cut["temperature"].tolist() == [0.25, -1.5]
    assert cut["temperature"].dtype == torch.float32


def test_columns_of_a_table_that_was_sent_transposed_are_contiguous() -> None:
    table = np.zeros(5, np.dtype([("slot", np.int32), ("temperature", np.float32)]))
    table["slot"] = range(5)
    cut = columns(send(words(table).T, torch.device("cpu")).T, table.dtype)
    assert cut["slot"].tolist() == list(range(5))
    assert all(column.is_contiguous() for column in cut.values())


def test_other_work_is_begun_before_numbers_are_waited_for() -> None:
    asked: list[str] = []
    numbers = fetch(torch.tensor([1, 2]), lambda: asked.append("more"))
    assert numbers.tolist() == [1, 2]
    assert asked == ["more"]
