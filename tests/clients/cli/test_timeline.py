"""``--timeline``: what the page knows, and that nothing in it can break out."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.cli.timeline import Timeline
from whisper_stream.clients.errors import OutputError
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import fake_server, word
from ...helpers.texts import SPEECH

SECOND = bytes(32_000)


def facts_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page)
    assert found is not None
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def test_words_know_when_they_were_shown_and_committed(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "out.html", "talk")
    ask, nut, note = word(" Ask", 0.1, 0.4), word(" nut", 0.4, 0.8), word(" not,", 0.45, 0.85)
    timeline.add_message(wire.SpeechStarted(time=0.1))
    timeline.add_audio(SECOND)
    timeline.add_message(wire.Partial(text=" Ask nut", words=(ask, nut)))
    timeline.add_audio(SECOND)
    timeline.add_message(wire.Commit(text=" Ask", words=(ask,)))
    timeline.add_message(wire.Partial(text=" Not", words=(word(" Not", 0.5, 0.9),)))
    timeline.add_message(wire.SpeechStopped(time=1.2))
    timeline.add_audio(SECOND)
    timeline.add_message(wire.Commit(text=" not, what", words=(note, word(" what", 2.0, 2.5))))
    timeline.write()
    facts = facts_of((tmp_path / "out.html").read_text())
    assert facts["duration"] == 3.0
    assert facts["speech"] == [{"start": 0.1, "end": 1.2}]
    assert [(each["text"], each["shown"], each["committed"]) for each in facts["words"]] == [
        (" Ask", 1.0, 2.0),
        (" not,", 2.0, 3.0),
        (" what", 3.0, 3.0),
    ]


def test_the_waveform_is_that_of_the_audio(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "out.html", "talk")
    samples = np.concatenate([np.zeros(800), np.full(800, -32_768), np.full(400, 16_384)])
    timeline.add_audio(samples.astype("<i2").tobytes())
    timeline.write()
    peaks = facts_of((tmp_path / "out.html").read_text())["peaks"]
    assert peaks == [0] * 5 + [127] * 5 + [63] * 3


def test_nothing_breaks_out_of_the_page(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "out.html", "<img src=x>%STYLE%")
    timeline.add_audio(SECOND)
    evil = word(" </script><script>alert(1)</script>%SCRIPT%", 0.1, 0.4)
    timeline.add_message(wire.Commit(text=evil.text, words=(evil,)))
    timeline.write()
    page = (tmp_path / "out.html").read_text()
    assert "<img" not in page and page.count("</script>") == 2
    assert facts_of(page)["words"][0]["text"] == evil.text
    assert "default-src &#x27;none&#x27;; media-src data:" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"--timeline .*: is a directory"):
        Timeline(tmp_path, "talk")


def test_the_flag_writes_a_page_with_the_audio(tmp_path: Path) -> None:
    output = tmp_path / "talk.html"
    with fake_server() as server:
        arguments = [str(SPEECH), "--server", server.url, "--speed", "0"]
        assert main([*arguments, "--timeline", str(output)]) == 0
    page = output.read_text()
    assert [each["text"] for each in facts_of(page)["words"]] == [" Ask", " not", " what"]
    found = re.search(r'src="(data:audio/mpeg;base64,[^"]+)"', page)
    assert found is not None
    mp3 = tmp_path / "talk.mp3"
    mp3.write_bytes(base64.b64decode(found[1].partition(",")[2]))
    with av.open(str(mp3)) as container:
        seconds = sum(frame.samples for frame in container.decode(audio=0)) / 16_000
    assert seconds == pytest.approx(11.0, abs=0.2)
