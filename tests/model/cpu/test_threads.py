"""What is settled in the environment before torch loads."""

from __future__ import annotations

import os

import pytest
from whisper_stream.model.cpu.runtime import keep_little_code, keep_no_buffers, wait_politely


def test_defaults_are_set_and_choices_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2000")
    wait_politely()
    keep_little_code()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "2000"
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    keep_little_code()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"
    monkeypatch.setenv("MKL_DISABLE_FAST_MM", "0")
    keep_no_buffers()
    assert os.environ["MKL_DISABLE_FAST_MM"] == "0"
    monkeypatch.delenv("MKL_DISABLE_FAST_MM")
    keep_no_buffers()
    assert os.environ["MKL_DISABLE_FAST_MM"] == "1"
