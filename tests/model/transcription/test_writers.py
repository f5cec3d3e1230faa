"""Every output format, with every option, is byte for byte that of the reference."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import whisper.utils
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.errors import DecodingOptionsError, ModelError
from whisper_stream.model.transcription.writers import OUTPUT_FORMATS, get_writer, render_result

OPTIONS = [
    {
        "max_line_width": width,
        "max_line_count": count,
        "max_words_per_line": words,
        "highlight_words": highlight,
    }
    for width, count, words, highlight in itertools.product(
        (None, 1, 12, 42), (None, 1, 2), (None, 1, 3), (False, True)
    )
]


def result_of(*texts: str, words: bool = True, pause: float = 0.3) -> dict[str, Any]:
    """Segments with 0.4 s a word and ``pause`` seconds between them."""
    segments: list[dict[str, Any]] = []
    time = 0.52
    for number, text in enumerate(texts):
        start, timings = time, []
        for piece in text.split(" ")[1:] if text.startswith(" ") else text.split(" "):
            timings.append(
                {"word": f" {piece}", "start": time, "end": time + 0.35, "probability": 0.9}
            )
            time += 0.4
        segment = {"id": number, "seek": 0, "start": start, "end": time, "text": text}
        segment |= {"tokens": [50364, 400], "temperature": 0.0, "avg_logprob": -0.25}
        segment |= {"compression_ratio": 1.25, "no_speech_prob": 0.01}
        segments.append(segment | ({"words": timings} if words else {}))
        time += pause
    return {"text": "".join(texts), "segments": segments, "language": "en"}


LONG = (
    " And so, my fellow Americans, ask not what your country can do for you, ask what you can do."
)
RESULTS = {
    "empty": {"text": "", "segments": [], "language": "en"},
    "silent": {"text": "", "segments": [result_of(" x")["segments"][0] | {"words": []}]},
    "one word": result_of(" Yes."),
    "plain": result_of(LONG, " Second one."),
    "no words": result_of(LONG, " Arrow --> here\tand a tab.", words=False),
    "right to left": result_of(" שלום עולם, מה שלומך היום?", " مرحبا بالعالم"),
    "emoji": result_of(" A 👩‍🚀 flew 🚀 to 🏳️‍🌈 land 😀", " 👍"),
    "no spaces": result_of("今天天气很好，我们去公园吧。", "好的。"),
    "long pauses": result_of(LONG, LONG, " End.", pause=4.0),
    "hours": result_of(" Late", *[" still here"] * 3, pause=3_700.5),
    "line breaks": result_of(" a\nb c\n d", "  <u>x</u> --> y "),
}


def reference_text(
    output_format: str, result: dict[str, Any], options: dict[str, Any], folder: Path
) -> str:
    whisper.utils.get_writer(output_format, str(folder))(result, "a/clip.one.wav", options)
    return (folder / f"clip.one.{output_format}").read_bytes().decode()


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
@pytest.mark.parametrize("name", RESULTS)
def test_equals_the_reference(tmp_path: Path, output_format: str, name: str) -> None:
    for options in OPTIONS:
        ours = render_result(output_format, RESULTS[name], options)
        assert ours == reference_text(output_format, RESULTS[name], options, tmp_path), options


WORD_TEXTS = st.one_of(
    st.sampled_from(
        [" the", " word", "'s", ",", " a-long-hyphenated-thing", " 👍", " مرحبا", "", " "]
    ),
    st.text(alphabet="ab é\n<>-", max_size=6),
)


@st.composite
def word_results(draw: st.DrawFn) -> dict[str, Any]:
    time = draw(st.floats(0, 5_000))
    segments = []
    for number in range(draw(st.integers(0, 4))):
        words: list[dict[str, Any]] = []
        for text in draw(st.lists(WORD_TEXTS, max_size=9)):
            start = time + draw(st.sampled_from([0.0, 0.0004, 0.2, 3.0, 3.1]))
            time = start + draw(st.sampled_from([0.0, 0.0006, 0.3]))
            words.append({"word": text, "start": start, "end": time, "probability": 0.5})
        text = "".join(word["word"] for word in words)
        segments.append({"id": number, "start": time, "end": time, "text": text, "words": words})
    return {"text": "", "segments": segments, "language": "en"}


@settings(max_examples=300, deadline=None)
@given(
    result=word_results(),
    options=st.fixed_dictionaries(
        {},
        optional={
            "max_line_width": st.one_of(st.none(), st.integers(1, 50)),
            "max_line_count": st.one_of(st.none(), st.integers(1, 4)),
            "max_words_per_line": st.one_of(st.none(), st.integers(1, 6)),
            "highlight_words": st.booleans(),
        },
    ),
)
def test_any_words_equal_the_reference(result: dict[str, Any], options: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        for output_format in ("srt", "vtt"):
            ours = render_result(output_format, result, options)
            assert ours == reference_text(output_format, result, options, Path(folder))


def test_all_writes_every_format(tmp_path: Path) -> None:
    ours, reference = tmp_path / "ours", tmp_path / "reference"
    for folder, make in ((ours, get_writer), (reference, whisper.utils.get_writer)):
        folder.mkdir()
        make("all", str(folder))(RESULTS["plain"], "clip.tar.wav", {"max_line_width": 20})
    written = {path.name: path.read_bytes() for path in ours.iterdir()}
    assert written == {path.name: path.read_bytes() for path in reference.iterdir()}
    assert sorted(written) == [f"clip.tar.{name}" for name in sorted(OUTPUT_FORMATS)]


def test_options_as_keywords(tmp_path: Path) -> None:
    get_writer("srt", tmp_path)(RESULTS["plain"], "a.wav", {"max_line_width": 9}, max_line_width=20)
    expected = render_result("srt", RESULTS["plain"], {"max_line_width": 20})
    assert (tmp_path / "a.srt").read_text() == expected


@pytest.mark.parametrize(
    ("output_format", "options", "expected"),
    [
        ("pdf", {}, "output_format 'pdf' is unknown: use one of txt, vtt"),
        ("srt", {"max_width": 3}, "max_width is not a subtitle option: use max_line_width"),
        ("srt", {"max_line_width": 0}, "max_line_width must be at least 1"),
        ("srt", {"max_line_count": -1}, "max_line_count must be at least 1"),
    ],
)
def test_bad_arguments_name_their_field(
    tmp_path: Path, output_format: str, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DecodingOptionsError, match=expected):
        get_writer(output_format, tmp_path)(RESULTS["plain"], "a.wav", options)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a\.txt cannot be written \(No such file"):
        get_writer("txt", tmp_path / "missing")(RESULTS["plain"], "a.wav")


def test_times_must_not_be_negative() -> None:
    result = {"segments": [{"text": "x", "start": -1.0, "end": 0.0}]}
    with pytest.raises(ValueError, match="-1000 ms"):
        render_result("vtt", result)
