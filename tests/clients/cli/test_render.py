"""Captions for people and for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from rich.text import Text
from whisper_stream.clients.cli.render import (
    JsonRenderer,
    LiveRenderer,
    PlainRenderer,
    ProgressBar,
    Renderer,
    clean,
    clock,
)
from whisper_stream.clients.sdk.transcript import LiveTranscript
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, segment, word

STREAM: tuple[wire.ServerMessage, ...] = (
    wire.Partial(text=" Ask nut", words=(WORDS[0], word(" nut", 0.4, 0.8))),
    wire.Commit(text=" Ask not", words=WORDS[:2]),
    segment(0, WORDS[:2]),
    wire.Commit(text=" what", words=WORDS[2:]),
)


def run(renderer: Renderer, *messages: wire.ServerMessage) -> None:
    transcript = LiveTranscript()
    for message in messages:
        transcript.add(message)
        renderer.show(message, transcript)
    renderer.close(transcript)


def terminal(width: int = 60, height: int = 10) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    console = Console(
        file=screen,
        force_terminal=True,
        color_system="standard",
        width=width,
        height=height,
        highlight=False,
        _environ={},
    )
    return console, screen


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "00:00.00"),
        (1.2, "00:01.20"),
        (59.999, "01:00.00"),
        (3_599.5, "59:59.50"),
        (3_600.0, "1:00:00.00"),
        (100 * 3_600 + 62.34, "100:01:02.34"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_plain_lines_are_closed_segments_and_what_was_left_open() -> None:
    lines: list[str] = []
    run(PlainRenderer(lines.append, lines.append), *STREAM)
    assert lines == ["[00:00.00 → 00:00.80] Ask not", "[00:01.20 → 00:01.50] what"]


def test_json_is_every_message_as_one_line() -> None:
    stdout = io.BytesIO()
    run(JsonRenderer(stdout, print), *STREAM)
    messages = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [message["type"] for message in messages] == ["partial", "commit", "segment", "commit"]
    assert messages[1]["words"][1] == {
        "text": " not",
        "start": 0.4,
        "end": 0.8,
        "probability": 0.9,
    }


def test_live_tail_is_dim_and_committed_words_are_solid() -> None:
    console, screen = terminal()
    renderer = LiveRenderer(console)
    transcript = LiveTranscript()
    for message in (
        wire.Commit(text=" Ask", words=WORDS[:1]),
        wire.Partial(text=" nut", words=(word(" nut", 0.4, 0.8),)),
    ):
        transcript.add(message)
        renderer.show(message, transcript)
    assert screen.getvalue().endswith("\x1b[36m[00:00.00] \x1b[0mAsk\x1b[2m nut\x1b[0m")
    renderer.close(transcript)


def test_live_leaves_only_committed_text_on_the_screen() -> None:
    console, screen = terminal()
    run(LiveRenderer(console), *STREAM, wire.Partial(text=" yu", words=(word(" yu", 1.6, 1.7),)))
    assert shown(screen.getvalue()) == ["[00:00.00] Ask not", "[00:01.20] what"]


def test_live_text_that_outgrows_the_screen_keeps_its_end() -> None:
    console, screen = terminal(width=20, height=4)
    renderer = LiveRenderer(console)
    transcript = LiveTranscript()
    message = wire.Commit(text="", words=tuple(word(f" word{n}", n, n + 1) for n in range(50)))
    transcript.add(message)
    renderer.show(message, transcript)
    rows = screen.getvalue().replace("\r", "").split("\n")
    assert len(rows) == 3
    assert rows[-1].endswith("word49")
    renderer.close(transcript)


def test_live_shows_how_far_it_is_behind() -> None:
    console, screen = terminal()
    renderer, transcript = LiveRenderer(console), LiveTranscript()
    renderer.show(wire.Lag(behind=2.14, interval=1.0), transcript)
    for message in STREAM[:1]:
        transcript.add(message)
        renderer.show(message, transcript)
    assert shown(screen.getvalue()) == ["[00:00.00] Ask nut", "2.1 s behind"]
    renderer.show(wire.Lag(behind=0.0, interval=0.5), transcript)
    assert shown(screen.getvalue()) == ["[00:00.00] Ask nut"]
    renderer.close(transcript)
    assert shown(screen.getvalue()) == []


def test_live_shows_that_it_reconnects_until_it_has() -> None:
    console, screen = terminal(width=24)
    renderer, transcript = (
        LiveRenderer(console, status=lambda: Text("━━━ USB microphone")),
        LiveTranscript(),
    )
    transcript.add(STREAM[0])
    renderer.show(STREAM[0], transcript)
    renderer.show_reconnecting()
    assert shown(screen.getvalue()) == ["[00:00.00] Ask nut", "reconnecting… ━━━ USB …"]
    renderer.show(wire.Resumed(session="s", samples=0, bytes=0, controls=0), transcript)
    assert shown(screen.getvalue()) == ["[00:00.00] Ask nut", "━━━ USB microphone"]
    renderer.close(transcript)


def test_lines_and_json_tell_it_beside_the_captions() -> None:
    told: list[str] = []
    written = io.BytesIO()
    resumed = wire.Resumed(session="s", samples=0, bytes=0, controls=0)
    for renderer in (PlainRenderer(told.append, told.append), JsonRenderer(written, told.append)):
        renderer.show_reconnecting()
        renderer.show(resumed, LiveTranscript())
    lost, back = told[:2]
    assert told == [lost, back] * 2
    assert "reconnecting" in lost and "reconnected" in back
    assert json.loads(written.getvalue())["type"] == "resumed"


def test_notices_stand_between_captions() -> None:
    console, screen = terminal()
    renderer = LiveRenderer(console)
    transcript = LiveTranscript()
    for message in STREAM[:3]:
        transcript.add(message)
        renderer.show(message, transcript)
    renderer.notice("whisper-stream: warning: [low] volume")
    renderer.close(transcript)
    assert shown(screen.getvalue()) == [
        "[00:00.00] Ask not",
        "whisper-stream: warning: [low] volume",
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert clean(" \x1b]0;title\x07 a\nb\u009b2J ") == "]0;title  a b 2J"
    console, screen = terminal()
    run(LiveRenderer(console), segment(0, (word(" \x1b[2J[red]boo\x07", 0.0, 1.0),)))
    assert shown(screen.getvalue()) == ["[00:00.00] [2J[red]boo"]


def test_wide_characters_take_two_columns() -> None:
    console, screen = terminal(width=20)
    run(LiveRenderer(console), segment(0, (word("你好世界你好", 0.0, 1.0),)))
    assert shown(screen.getvalue()) == ["[00:00.00]", "你好世界你好"]


def test_progress_is_of_the_whole() -> None:
    console, screen = terminal(width=80)
    bar = ProgressBar(console, 120.0)
    bar.advance(60.0)
    bar.print("[00:00.00 → 00:00.80] Ask not")
    bar.close()
    assert "50%" in screen.getvalue()
    assert "01:00.00" in screen.getvalue()
    assert shown(screen.getvalue()) == ["[00:00.00 → 00:00.80] Ask not"]


def test_progress_of_unknown_length() -> None:
    console, screen = terminal(width=80)
    bar = ProgressBar(console, None)
    bar.advance(60.0)
    bar.close()
    assert shown(screen.getvalue()) == []


def shown(data: str) -> list[str]:
    """What stands on the terminal after ``data``: the lines, without trailing blanks."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(data):
        char = data[at]
        at += 1
        if char == "\x1b":
            end = next(n for n in range(at + 1, len(data)) if data[n].isalpha())
            argument, code = data[at + 1 : end], data[end]
            at = end + 1
            if code == "A":
                row -= int(argument or 1)
            elif code == "K" and argument == "2":
                lines[row] = ""
            else:
                assert code in "mhl", code
        elif char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row].ljust(column)[:column] + char + lines[row][column + 1 :]
            column += 1
    kept = [line.rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    return kept
