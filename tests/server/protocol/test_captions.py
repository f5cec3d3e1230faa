"""Captions: line, cue and time limits on any words, and exact text for known ones."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream import WhisperStreamError
from whisper_stream.server.protocol.captions import (
    CUE_LINES,
    CUE_MS,
    FORMATS,
    LINE_CHARS,
    cues,
    render,
)
from whisper_stream.server.protocol.messages import Segment, Word


def segment(*words: tuple[str, float, float], id: int = 1) -> Segment:
    made = tuple(Word(text=t, start=s, end=e, probability=0.9) for t, s, e in words)
    return Segment(
        id=id,
        text="".join(word.text for word in made),
        start=made[0].start if made else 0.0,
        end=made[-1].end if made else 0.0,
        language="en",
        words=made,
        avg_logprob=-0.2,
        no_speech_prob=0.0,
        compression_ratio=1.2,
        temperature=0.0,
    )


GREETING = segment((" Hello,", 0.5, 1.0), (" <b>world</b> & co.", 1.0, 3661.25))
NAMES = segment((" 東京", 3700.0, 3700.4), ("は", 3700.4, 3700.5), id=2)


def test_srt_is_exact() -> None:
    expected = (
        "1\n00:00:00,500 --> 00:00:01,000\nHello,\n\n"
        "2\n00:00:01,000 --> 00:00:07,000\n<b>world</b> & co.\n\n"
        "3\n01:01:40,000 --> 01:01:40,500\n東京は\n"
    )
    assert render([GREETING, NAMES], "srt") == expected


def test_vtt_is_exact_and_escaped() -> None:
    expected = (
        "WEBVTT\n\n00:00:00.500 --> 00:00:01.000\nHello,\n\n"
        "00:00:01.000 --> 00:00:07.000\n&lt;b&gt;world&lt;/b&gt; &amp; co.\n\n"
        "01:01:40.000 --> 01:01:40.500\n東京は\n"
    )
    assert render([GREETING, NAMES], "vtt") == expected


def test_txt_has_a_line_for_each_segment() -> None:
    assert render([GREETING, segment(), NAMES], "txt") == "Hello, <b>world</b> & co.\n東京は\n"


def test_json_holds_every_word() -> None:
    document = json.loads(render([GREETING, NAMES], "json"))
    assert document["text"] == "Hello, <b>world</b> & co. 東京は"
    assert [s["id"] for s in document["segments"]] == [1, 2]
    expected = {"text": " Hello,", "start": 0.5, "end": 1.0, "probability": 0.9}
    assert document["segments"][0]["words"][0] == expected


def test_nothing_said_renders_to_valid_files() -> None:
    empty = {form: render([], form) for form in FORMATS}
    assert empty["srt"] == "" and empty["txt"] == "" and empty["vtt"] == "WEBVTT\n"
    assert json.loads(empty["json"]) == {"text": "", "segments": []}


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(WhisperStreamError, match="'doc'.*srt, vtt, txt, json"):
        render([], "doc")  # type: ignore[arg-type]


def test_lines_break_between_words() -> None:
    words = [(f" word{i:02d}", i * 0.2, i * 0.2 + 0.2) for i in range(20)]
    made = cues([segment(*words)])
    # "word00" and six more with a space between are 6 + 5 * 7 = 41 characters.
    assert made[0].lines == (
        "word00 word01 word02 word03 word04 word05",
        "word06 word07 word08 word09 word10 word11",
    )
    assert [len(cue.lines) for cue in made] == [2, 2]
    assert (made[0].end_ms, made[1].start_ms) == (2_400, 2_400)


word_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
times = st.floats(0, 20_000, allow_nan=False)
segments = st.lists(
    st.lists(st.tuples(word_texts, times, times), max_size=8).map(lambda ws: segment(*ws)),
    max_size=5,
)


@given(segments)
def test_cues_keep_every_limit_and_every_letter(said: list[Segment]) -> None:
    """Even for times that go backwards."""
    made = cues(said)
    clock = 0
    for cue in made:
        assert 1 <= len(cue.lines) <= CUE_LINES
        assert all(0 < len(line) <= LINE_CHARS for line in cue.lines)
        assert clock <= cue.start_ms < cue.end_ms <= cue.start_ms + CUE_MS
        clock = cue.end_ms
    shown = "".join("".join(cue.lines) for cue in made)
    spoken = "".join(word.text for s in said for word in s.words)
    assert "".join(shown.split()) == "".join(spoken.split())


@given(segments)
def test_files_parse_back_to_their_cues(said: list[Segment]) -> None:
    made = cues(said)
    for form, point in (("srt", ","), ("vtt", ".")):
        text = render(said, form)  # type: ignore[arg-type]
        stamps = re.findall(rf"^(\d+):(\d\d):(\d\d)\{point}(\d\d\d) --> ", text, re.MULTILINE)
        starts = [((int(h) * 60 + int(m)) * 60 + int(s)) * 1000 + int(t) for h, m, s, t in stamps]
        assert starts == [cue.start_ms for cue in made]
