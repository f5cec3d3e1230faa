"""The Python SDK, async and sync, and the examples of README.md."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import whisper_stream.clients as sdk
from whisper_stream.clients import Commit, Done, Flushed, Resumed, SourceError, sync
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import fake_server
from ...helpers.relay import relay
from ...helpers.server_rig import STEP, ScriptedEngine, daemon, speech
from ..sources.test_microphone import FakePortAudio

ROOT = Path(__file__).parents[3]
SPEECH = ROOT / "tests" / "data" / "en-speech-jfk.wav"
SECOND = speech(1.0)


def test_every_name_is_there() -> None:
    for name in sdk.__all__:
        assert getattr(sdk, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sdk.nothing  # noqa: B018


def test_an_async_stream_over_a_lost_connection() -> None:
    async def talk(url: str, cut: Any) -> list[sdk.Event]:
        events = []
        async with sdk.connect(url, language="de") as stream:
            await stream.send(SECOND)
            flush_id = await stream.flush()
            async for event in stream:
                events.append(event)
                if event == Flushed(seq=event.seq, id=flush_id, time=1.0):
                    cut()
                    await stream.send(SECOND)
                    await stream.end()
        return events

    with daemon() as running, relay(running.port) as between:
        url = f"ws://127.0.0.1:{between.port}"
        events = asyncio.run(talk(url, lambda: between.cut(running.port)))
    words = [word for event in events if isinstance(event, Commit) for word in event.words]
    assert [word.start for word in words] == [0.0, 0.5, 1.0, 1.5]
    assert any(isinstance(event, Resumed) for event in events)
    assert isinstance(events[-1], Done) and events[-1].samples == 4 * STEP


def test_a_sync_stream() -> None:
    with daemon() as running:
        with sync.connect(running.url, sample_rate=8_000, encoding="f32le") as stream:
            stream.send(bytes(4 * 8_000))
            assert stream.flush() == "f1"
            stream.end()
            events = list(stream)
    assert isinstance(events[-1], Done) and events[-1].duration == 1.0


def test_what_cannot_be_opened() -> None:
    with relay(None) as nobody, pytest.raises(sdk.ConnectError):
        with sync.connect(f"ws://127.0.0.1:{nobody.port}"):
            pass
    with pytest.raises(sdk.UsageError):
        with sync.connect("http://127.0.0.1"):
            pass
    with pytest.raises(SourceError, match="does not exist"):
        sync.transcribe_file("nothing.wav", "ws://127.0.0.1:9")


def test_a_file_becomes_a_transcript(tmp_path: Path) -> None:
    kinds: list[str] = []
    with fake_server() as server:
        heard = sync.transcribe_file(
            SPEECH,
            server.url,
            prompt="Kennedy",
            on_event=lambda event: kinds.append(type(event).__name__),
        )
        start = server.peers[0].received[0]
        audio = len(server.peers[0].audio)
    assert isinstance(start, wire.Start) and start.prompt == "Kennedy"
    assert audio == 2 * 11 * 16_000
    assert heard.text == "Ask not what"
    assert [word.text for word in heard.words] == [" Ask", " not", " what"]
    heard.save(tmp_path / "talk.srt")
    assert (tmp_path / "talk.srt").read_text() == heard.render("srt")
    assert kinds[0] == "Ready" and kinds[-1] == "Done"


def test_a_microphone_until_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", FakePortAudio([[500] * 12]))
    with daemon() as running:
        events = sync.transcribe_microphone(running.url)
        first = next(event for event in events if isinstance(event, Commit))
        events.close()
    assert first.words[0].start == 0.0


def test_the_examples_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a daemon that says three words, with its address put in place of the usual one."""
    readme = (ROOT / "README.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sounddevice", FakePortAudio([[500] * 30]))
    (tmp_path / "talk.wav").write_bytes(SPEECH.read_bytes())
    (tmp_path / "talk.raw").write_bytes(SECOND)
    for example in examples:
        with daemon(ScriptedEngine(word_text=lambda job: " goodbye")) as running:
            code = example.replace("ws://127.0.0.1:9090", running.url)
            assert code != example
            exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
            assert "goodbye" in capsys.readouterr().out, example
    assert (tmp_path / "talk.srt").read_text().startswith("1\n00:00:00,000 -->")


@pytest.mark.needs("node")
def test_the_javascript_example_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"^```js\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    client = ROOT / "clients" / "browser" / "whisper-stream.js"
    (tmp_path / "whisper-stream.js").write_bytes(client.read_bytes())
    with daemon(ScriptedEngine(word_text=lambda job: " hello")) as running:
        code = "const pcm = new Int16Array(16000);\n" + example
        code = code.replace("ws://127.0.0.1:9090", running.url)
        (tmp_path / "example.mjs").write_text(code)
        done = subprocess.run(
            ["node", "example.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["hello", "hello"]
