"""A daemon with a key, against those who have none; and those who hold connections open."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol
from whisper_stream.server.daemon.tls import fingerprint, make_certificate
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import Daemon, Peer, daemon, speech

KEY = "a-key-that-is-long-enough"
SECOND = "another-key-long-enough"
ROOT = Path(__file__).parents[3]
SPEECH = ROOT / "tests" / "data" / "en-speech-jfk.wav"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(
        f"anna:{KEY} streams=1 bytes=64000\nold:{SECOND} expires=2020-01-01\n", encoding="utf-8"
    )
    return path


@pytest.fixture
def guarded(keys: Path) -> Iterator[Daemon]:
    with daemon(api_keys=str(keys)) as running:
        yield running


def refused(running: Daemon, **more: Any) -> int:
    with pytest.raises(InvalidStatus) as caught, running.connect(**more):
        pass
    body = caught.value.response.body
    assert body.endswith(b"\n") and KEY.encode() not in body
    return int(caught.value.response.status_code)


def test_a_key_is_taken_wherever_it_may_be_shown(guarded: Daemon) -> None:
    for more in (
        {"additional_headers": {"Authorization": f"Bearer {KEY}"}},
        {"additional_headers": {"X-API-Key": KEY}},
        {"url": f"{guarded.url}?key={KEY}"},
    ):
        with guarded.connect(**more) as peer:
            peer.send(wire.Start(), wire.Eos())
            assert isinstance(peer.rest()[0][-1], wire.Done)
    offered = [Subprotocol(wire.JSON_SUBPROTOCOL), Subprotocol(f"whisper-stream.key.{KEY}")]
    with connect(guarded.url, subprotocols=offered, proxy=None) as ws:
        assert ws.subprotocol == wire.JSON_SUBPROTOCOL


def test_wrong_and_expired_keys_are_refused_and_counted(
    guarded: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="whisper_stream")
    assert refused(guarded) == 401
    assert refused(guarded, url=f"{guarded.url}?key={SECOND}") == 401  # expired
    for number in range(100):
        assert refused(guarded, url=f"{guarded.url}?key={KEY}{number}") == 401
    assert guarded.hub.metrics.refusals["key"] == 102
    assert guarded.hub.stats().connections == 0
    assert KEY not in caplog.text and SECOND not in caplog.text


def test_limits_of_a_key(guarded: Daemon) -> None:
    url = f"{guarded.url}?key={KEY}"
    with guarded.connect(url=url) as first:
        first.send(wire.Start())
        first.until(wire.Ready)
        with guarded.connect(url=url) as second:
            second.send(wire.Start())
            messages, code, reason = second.rest()
        assert isinstance(messages[0], wire.Error) and (code, reason) == (1013, "limit_reached")
        first.audio(speech(1.0))
        first.audio(speech(2.0))
        messages, code, reason = first.rest()
    assert (code, reason) == (1008, "limit_reached")
    assert isinstance(messages[-1], wire.Error) and "tomorrow" in messages[-1].message


def test_another_s_session_stays_closed(guarded: Daemon) -> None:
    """Whoever has a key still needs the session's own token."""
    url = f"{guarded.url}?key={KEY}"
    with guarded.connect(url=url) as owner:
        owner.send(wire.Start(resume=True))
        ready = owner.receive()
        assert isinstance(ready, wire.Ready)
        with guarded.connect(url=url) as other:
            other.send(wire.Resume(session=ready.session, token=KEY))
            assert other.rest()[1:] == (1008, "unknown_session")
        address = f"{guarded.http}/v1/sessions/{ready.session}.txt"
        for query in ("", f"?token={KEY}", f"?key={KEY}"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + query)


def test_pages_of_elsewhere_are_refused() -> None:
    with daemon(allowed_origins="https://app.example") as running:
        assert refused(running, origin=Origin("https://evil.example")) == 403
        assert refused(running, origin=Origin("null")) == 403
        for welcome in ("https://app.example", running.http):
            with running.connect(origin=Origin(welcome)) as peer:
                peer.send(wire.Start(), wire.Eos())
                assert isinstance(peer.rest()[0][-1], wire.Done)


def ended(sock: socket.socket) -> bytes:
    """Everything until the other side ends."""
    sock.settimeout(20)
    received = b""
    try:
        while piece := sock.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_those_who_dawdle_are_closed_and_others_served() -> None:
    with daemon(handshake_timeout=0.3) as running:
        slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(20)]
        for sock in slow:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
        with running.connect() as peer:
            peer.send(wire.Start())
            peer.until(wire.Ready)
            for sock in slow:
                assert ended(sock) == b""
                sock.close()
            peer.send(wire.Eos())  # older than the limit by now: that is for handshakes
            assert isinstance(peer.rest()[0][-1], wire.Done)
        with running.connect() as silent:
            assert silent.rest()[1:] == (1008, "idle_timeout")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    ],
)
def test_huge_headers_and_other_protocols_end_in_400(request_bytes: bytes) -> None:
    with daemon() as running:
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            try:
                sock.sendall(request_bytes)
            except (BrokenPipeError, ConnectionResetError):
                pass
            sock.settimeout(20)
            try:
                answer = sock.recv(100)
            except ConnectionResetError:
                answer = b""  # closed with unread bytes: the answer is lost on the way
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        with running.connect() as peer:
            peer.send(wire.Start(), wire.Eos())
            assert isinstance(peer.rest()[0][-1], wire.Done)


@pytest.mark.parametrize(
    "path",
    ["/v1/sessions/..%2f..%2fetc%2fpasswd.txt", "/..%2f..%2fetc/passwd", "/%00", "/page.json/x"],
)
def test_no_path_reaches_the_file_system(path: str) -> None:
    with daemon() as running, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(running.http + path)


PROGRAM = (
    "import sys; from tests.helpers.server_rig import ScriptedEngine; "
    "from whisper_stream.server.daemon.main import main; "
    "sys.exit(main(sys.argv[1:], lambda config: ScriptedEngine()))"
)


def serve(*flags: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--port", "0", "--announce", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )


def certificate_told(process: subprocess.Popen[str]) -> tuple[Path, str]:
    """Its path and its fingerprint."""
    assert process.stderr is not None
    while "event=self_signed" not in (line := process.stderr.readline()):
        assert line, "no certificate was told"
    found = re.search(r"certificate=(\S+) sha256=([0-9A-F:]{95}): .*SSL_CERT_FILE=(\S+)", line)
    assert found is not None and found[1] == found[3]
    return Path(found[1]), found[2]


@pytest.mark.needs("openssl")
def test_our_own_clients_take_a_certificate_that_they_are_told_to(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    client = [sys.executable, "-m", "whisper_stream.clients", str(SPEECH), "--speed", "0"]
    with serve("--self-signed", **cache) as process:
        assert process.stdout is not None
        path, told = certificate_told(process)
        url = json.loads(process.stdout.readline())["url"]
        port = url.split(":")[2].split("/")[0]
        outcomes = []
        for host, trusted in (("127.0.0.1", path), ("localhost", path), ("127.0.0.1", None)):
            variables = os.environ | ({} if trusted is None else {"SSL_CERT_FILE": str(trusted)})
            command = [*client, "--server", f"wss://{host}:{port}"]
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False
            )
            outcomes.append((done.returncode, done.stderr))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert [code for code, _ in outcomes] == [0, 0, 1], outcomes
    assert "certificate is not trusted (self-signed certificate)" in outcomes[2][1]
    assert "SSL_CERT_FILE" in outcomes[2][1] and outcomes[2][1].count("\n") == 1
    facts = subprocess.run(
        ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert facts.stdout.strip().partition("=")[2] == told
    assert (
        path.is_relative_to(tmp_path) and (path.parent / "key.pem").stat().st_mode & 0o777 == 0o600
    )
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_certificate_for_another_name_is_told(tmp_path: Path) -> None:
    """A real handshake with 127.0.0.2, which is this machine too, but is not in the certificate."""
    with serve("--self-signed", "--host", "0.0.0.0", XDG_CACHE_HOME=str(tmp_path)) as process:
        assert process.stdout is not None
        path, _ = certificate_told(process)
        port = json.loads(process.stdout.readline())["url"].split(":")[2].split("/")[0]
        command = [sys.executable, "-m", "whisper_stream.clients", str(SPEECH)]
        done = subprocess.run(
            [*command, "--server", f"wss://127.0.0.2:{port}"],
            env=os.environ | {"SSL_CERT_FILE": str(path)},
            capture_output=True,
            text=True,
            check=False,
        )
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the certificate is not valid for '127.0.0.2'; use a name or address" in done.stderr


@pytest.mark.needs("openssl")
def test_a_certificate_is_kept_and_made_anew_where_it_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ExitStack() as cleanup:
        path, key = make_certificate("192.168.7.7", cleanup)
        first = fingerprint(path)
        assert (make_certificate("192.168.7.7", cleanup), fingerprint(path)) == ((path, key), first)
        assert make_certificate("127.0.0.1", cleanup)[0] != path
        facts = subprocess.run(
            ["openssl", "x509", "-noout", "-text", "-in", path],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("DNS:localhost", "127.0.0.1", "0:0:0:0:0:0:0:1", "192.168.7.7"):
            assert name in facts
        Path(key).chmod(0o644)
        assert make_certificate("192.168.7.7", cleanup) == (path, key)
        assert fingerprint(path) != first
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        passing, _ = make_certificate("192.168.7.7", cleanup)
        assert Path(passing).exists()
    assert Path(path).exists() and not Path(passing).exists()


def test_encrypted_with_a_certificate_of_its_own_and_keys_read_again(
    keys: Path, tmp_path: Path
) -> None:
    flags = ("--self-signed", "--api-keys", str(keys))
    with serve(*flags, XDG_CACHE_HOME=str(tmp_path)) as process:
        assert process.stdout is not None and process.stderr is not None
        context = ssl.create_default_context(cafile=str(certificate_told(process)[0]))
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("wss://")
        with connect(f"{url}?key={KEY}", ssl=context, proxy=None) as ws:
            peer = Peer(ws)
            peer.send(wire.Start(), wire.Eos())
            assert isinstance(peer.rest()[0][-1], wire.Done)
        keys.write_text(f"new:{SECOND}\n", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        while "event=reloaded" not in process.stderr.readline():
            pass
        with connect(f"{url}?key={SECOND}", ssl=context, proxy=None):
            pass
        with pytest.raises(InvalidStatus):
            connect(f"{url}?key={KEY}", ssl=context, proxy=None)
        keys.write_text("broken\n", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        while "event=reload_failed" not in (line := process.stderr.readline()):
            pass
        assert "what was in use before still holds" in line
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tls-key", "k.pem"], "--tls-key needs --tls-cert"),
        (
            ["--tls-cert", "no.pem", "--tls-key", "no.pem"],
            "--tls-cert no.pem cannot be used (No such",
        ),
        (["--tls-cert", "LICENSE"], "--tls-cert LICENSE cannot be used: it is not PEM, or lacks"),
        (["--self-signed", "--tls-cert", "c.pem"], "exclude each other"),
        (["--api-keys", "no-such-file"], "--api-keys no-such-file cannot be read"),
        (["--max-load", "2"], "--max-load must be from 0 to 1"),
    ],
)
def test_wrong_security_options_end_in_one_line(flags: list[str], words: str) -> None:
    with serve(*flags) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and words in err and err.count("\n") == 1, err


def test_open_to_all_is_warned_of() -> None:
    with serve("--host", "0.0.0.0") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert "event=open_to_all" in err and "event=not_encrypted" in err


def test_too_many_connections_are_turned_away() -> None:
    with daemon(max_streams=1) as running:
        with ExitStack() as held:
            for _ in range(18):
                held.enter_context(connect(running.url, proxy=None))
            with running.connect() as peer:
                messages, code, reason = peer.rest()
        assert isinstance(messages[0], wire.Error)
        assert (code, reason) == (1013, "too_many_streams")
