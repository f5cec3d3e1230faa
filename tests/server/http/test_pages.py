"""The files of the captions page as the daemon serves them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from whisper_stream import __version__
from whisper_stream.server.http.pages import FILES

from ...helpers.server_rig import Daemon, daemon


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with daemon() as started:
        yield started


def get(running: Daemon, path: str, **headers: str) -> HTTPResponse:
    request = urllib.request.Request(f"{running.http}{path}", headers=headers)
    answer: HTTPResponse = urllib.request.urlopen(request)
    return answer


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: str(path.name))
def test_every_file_is_served_as_it_is(running: Daemon, path: Path) -> None:
    url = "/" if path.name == "index.html" else f"/{path.name}"
    answer = get(running, url)
    assert answer.read() == path.read_bytes()
    kinds = {
        ".html": "text/html",
        ".js": "text/javascript",
        ".css": "text/css",
        ".ts": "text/plain",
    }
    assert answer.headers.get_content_type() == kinds.get(path.suffix, "image/svg+xml")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    with pytest.raises(urllib.error.HTTPError, match="304"):
        get(running, url, **{"If-None-Match": answer.headers["ETag"]})


def test_the_policy_lets_nothing_else_in(running: Daemon) -> None:
    policy = get(running, "/").headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert (
        rules["connect-src"]
        == f"'self' ws://127.0.0.1:{running.port} wss://127.0.0.1:{running.port}"
    )
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"


@pytest.mark.parametrize(
    "host", ["evil.test; script-src *", "a b", "x'y", "", "[::1", "caf\u00e9.test"]
)
def test_a_strange_host_adds_nothing_to_the_policy(running: Daemon, host: str) -> None:
    header = {"Host": host.encode().decode("latin-1")}
    try:
        policy = get(running, "/", **header).headers["Content-Security-Policy"]
    except urllib.error.HTTPError as refused:
        assert refused.code == 400
    else:
        assert "connect-src 'self';" in policy and "*" not in policy


def test_nothing_is_asked_of_anybody_else() -> None:
    """The policy forbids it; nor does any file try."""
    names = {"http://www.w3.org/2000/svg"}  # an XML namespace, which nobody fetches
    for name in ("index.html", "page.css", "page.js", "recorder.js", "microphone.js"):
        text = (FILES / name).read_text()
        assert set(re.findall(r"\w+://[^\s\"'`)]+", text)) <= names, name
        assert " style=" not in text and " onclick=" not in text


def test_the_page_knows_the_model(running: Daemon) -> None:
    facts = json.load(get(running, "/page.json"))
    assert facts == {"model": "scripted", "languages": ["en", "de"], "version": __version__}
