"""Downloads against a server on the loopback that cuts, stalls, lies and refuses on demand."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from whisper_stream.model.errors import DownloadError
from whisper_stream.model.weights.download import DownloadOptions, download, progress_bar

DATA = bytes(range(256)) * 2000  # 512,000 bytes
SHA256 = hashlib.sha256(DATA).hexdigest()
PATIENCE = DownloadOptions(timeout_seconds=10, attempts=3, wait_seconds=0, show_progress=False)
HURRY = DownloadOptions(timeout_seconds=0.2, attempts=2, wait_seconds=0, show_progress=False)


class Server(ThreadingHTTPServer):
    """Serves ``data`` at every path. The switches say how badly."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = DATA
        self.etag: str | None = '"v1"'
        self.ranges = True  # whether Range is understood
        self.announce = True  # whether Content-Length is sent
        self.cut_after: list[int] = []  # bytes of each coming response, then the connection drops
        self.stall = 0  # coming responses that fall silent instead of dropping
        self.statuses: list[int] = []  # of the coming responses
        self.gate: threading.Event | None = None  # responses wait for it
        self.released = threading.Event()  # ends every stall
        self.requests: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hash/model.pt"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = cast(Server, self.server)
        server.requests.append({key.lower(): value for key, value in self.headers.items()})
        if server.gate is not None:
            server.gate.wait(30)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        body = server.data[self._start(server) :]
        if not body:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.data)}")
            self.end_headers()
            return
        self._head(server, body)
        if not server.cut_after:
            self.wfile.write(body)
            return
        self.wfile.write(body[: server.cut_after.pop(0)])
        self.wfile.flush()
        if server.stall:
            server.stall -= 1
            server.released.wait(30)

    def _start(self, server: Server) -> int:
        wanted = self.headers.get("Range")
        fresh = self.headers.get("If-Range") in (None, server.etag)
        if wanted is None or not server.ranges or not fresh:
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def _head(self, server: Server, body: bytes) -> None:
        start = len(server.data) - len(body)
        self.send_response(206 if start else 200)
        if start:
            total = len(server.data)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if server.announce:
            self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.released.set()
            running.shutdown()
            thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "model.pt"


def part_of(target: Path) -> Path:
    return target.with_name("model.pt.part")


def fetch(server: Server, target: Path, options: DownloadOptions = PATIENCE) -> None:
    assert download(server.url, target, sha256=SHA256, options=options) == target
    assert target.read_bytes() == DATA
    assert {path.name for path in target.parent.iterdir()} == {"model.pt", "model.pt.lock"}


def expect_error(
    server: Server, target: Path, match: str, options: DownloadOptions = PATIENCE
) -> None:
    with pytest.raises(DownloadError, match=match) as caught:
        download(server.url, target, sha256=SHA256, options=options)
    assert "\n" not in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize("announce", [True, False])
def test_a_whole_file_arrives(server: Server, target: Path, announce: bool) -> None:
    server.announce = announce
    fetch(server, target)
    assert len(server.requests) == 1


def test_a_file_that_is_there_is_not_fetched_again(server: Server, target: Path) -> None:
    fetch(server, target)
    fetch(server, target)
    assert len(server.requests) == 1


def test_a_damaged_file_is_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(DATA[:-1] + b"x")
    fetch(server, target)


@pytest.mark.parametrize("etag", ['"v1"', None, 'W/"weak"'])
def test_a_cut_is_continued_where_it_was(server: Server, target: Path, etag: str | None) -> None:
    server.etag = etag
    server.cut_after = [100_000, 50_000]
    fetch(server, target)
    asked = [request.get("range") for request in server.requests]
    assert asked == [None, "bytes=100000-", "bytes=150000-"]
    strong = etag if etag == '"v1"' else None
    assert [request.get("if-range") for request in server.requests] == [None, strong, strong]


def test_a_later_run_goes_on_from_what_arrived(server: Server, target: Path) -> None:
    server.cut_after = [100_000, 0, 0, 0]
    expect_error(server, target, "failed 3 times.*cut after 100000 of 512000 bytes.*goes on from")
    assert part_of(target).read_bytes() == DATA[:100_000]
    server.requests.clear()
    fetch(server, target)
    assert [request.get("range") for request in server.requests] == ["bytes=100000-"]


def test_attempts_count_only_while_nothing_new_arrives(server: Server, target: Path) -> None:
    server.cut_after = [1000] * 20
    fetch(server, target)
    assert len(server.requests) == 21


def test_a_server_without_ranges_starts_anew_and_ends(server: Server, target: Path) -> None:
    server.ranges = False
    server.cut_after = [100_000, 200_000]
    fetch(server, target)
    server.cut_after = [100_000] * 9
    target.unlink()
    expect_error(server, target, "failed 3 times")


def test_a_file_that_changed_on_the_server_is_fetched_whole(server: Server, target: Path) -> None:
    server.data = b"an older model" * 1000
    server.cut_after = [5000, 0, 0, 0]
    expect_error(server, target, "failed 3 times")
    server.data, server.etag = DATA, '"v2"'
    fetch(server, target)


def test_a_stale_part_without_marks_is_thrown_away_once(server: Server, target: Path) -> None:
    server.etag = None
    target.parent.mkdir()
    part_of(target).write_bytes(b"of something else")
    fetch(server, target)
    assert [request.get("range") for request in server.requests] == ["bytes=17-", None]


@pytest.mark.parametrize("part", [DATA, DATA + b"more"])
def test_a_part_that_is_whole_or_too_long(server: Server, target: Path, part: bytes) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(part)
    fetch(server, target)


def test_a_wrong_hash_is_refused_and_not_kept(server: Server, target: Path) -> None:
    server.data = DATA[::-1]
    expect_error(server, target, "SHA-256 is another")
    assert not part_of(target).exists()


def test_a_server_that_falls_silent_is_asked_again(server: Server, target: Path) -> None:
    server.cut_after, server.stall = [300_000], 1
    fetch(server, target, HURRY)
    assert [request.get("range") for request in server.requests] == [None, "bytes=300000-"]


def test_a_server_that_stays_silent_is_an_error(server: Server, target: Path) -> None:
    server.cut_after, server.stall = [0, 0], 2
    expect_error(server, target, "failed 2 times: the server fell silent", HURRY)


def test_not_found_is_final(server: Server, target: Path) -> None:
    server.statuses = [404]
    expect_error(server, target, "refused .*404.*WHISPER_STREAM_DOWNLOAD_URL")
    assert len(server.requests) == 1


def test_a_server_in_trouble_is_asked_again(server: Server, target: Path) -> None:
    server.statuses = [503, 429]
    fetch(server, target)


def test_an_unreachable_server_is_an_error(server: Server, target: Path) -> None:
    with Server() as closed:
        pass  # its port is free again, so nobody answers there
    expect_error(closed, target, "failed 3 times: Connection refused")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "model.pt", "ftp://host/model.pt"])
def test_only_http_is_fetched(url: str, target: Path) -> None:
    with pytest.raises(DownloadError, match="no http address"):
        download(url, target, sha256=SHA256)


def test_a_cache_below_a_file_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "cache" / "model.pt"
    with pytest.raises(DownloadError, match="Cannot store the model in .*Not a directory"):
        download(server.url, target, sha256=SHA256, options=PATIENCE)
    assert not server.requests


@pytest.mark.parametrize("field", ["timeout_seconds", "attempts", "wait_seconds"])
def test_impossible_options_are_refused_by_name(field: str) -> None:
    wrong: dict[str, Any] = {field: -1}
    with pytest.raises(ValueError, match=field):
        DownloadOptions(**wrong)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("show", [True, False])
def test_progress_is_drawn_on_a_terminal_if_asked(
    show: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("model.pt", show=show) as report:
        report(500, None)
        report(500, 1000)
        report(1000, 1000)
    drawn = terminal.getvalue()
    assert ("model.pt" in drawn and "1.0/1.0 kB" in drawn) if show else drawn == ""


# -- in processes of their own

CHILD = """
import sys
from pathlib import Path
from whisper_stream.model.weights.download import DownloadOptions, download
from whisper_stream.model.weights.download import progress_bar
from whisper_stream.model.errors import DownloadError
url, target, sha256 = sys.argv[1:]
print("ready", flush=True)
try:
    download(url, Path(target), sha256=sha256, options=DownloadOptions(attempts=1))
except DownloadError as error:
    print(error)
assert "torch" not in sys.modules
"""


def child(server: Server, target: Path, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-c", CHILD, server.url, str(target), SHA256]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def output_of(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


def test_processes_at_once_fetch_once(server: Server, target: Path) -> None:
    server.gate = threading.Event()
    processes = [child(server, target) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    server.gate.set()
    assert [output_of(process) for process in processes] == ["", ""]
    assert target.read_bytes() == DATA
    assert len(server.requests) == 1


Mount = Callable[[str, str], tuple[str, ...]]


@pytest.fixture
def mounted(target: Path) -> Mount:
    """A command prefix that gives a child a cache on a small or read-only disk.

    It mounts a tmpfs in a namespace of its own; where that is not permitted, a limit on file sizes
    and a folder without write permission do as well.
    """
    target.parent.mkdir()

    def prefix(options: str, fallback: str) -> tuple[str, ...]:
        space = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
        mount = f"mount -t tmpfs -o {options} none '{target.parent}'"
        try:
            permitted = subprocess.run([*space, mount], capture_output=True).returncode == 0
        except FileNotFoundError:
            permitted = False
        start = (*space, f'{mount} && exec "$@"') if permitted else ("sh", "-c", fallback)
        return (*start, "sh")

    return prefix


@pytest.mark.parametrize("announce", [True, False])
def test_a_full_disk_is_an_error(
    server: Server, target: Path, mounted: Mount, announce: bool
) -> None:
    """Announced, the size is compared with the free space; else the write fails half-way."""
    server.announce = announce
    process = child(server, target, mounted("size=128k", 'ulimit -f 128; exec "$@"'))
    assert "The disk that holds" in (out := output_of(process))
    assert "is full" in out
    assert not target.exists()


def test_a_read_only_cache_is_an_error(server: Server, target: Path, mounted: Mount) -> None:
    process = child(server, target, mounted("ro", f"chmod 500 '{target.parent}'; exec \"$@\""))
    assert "Cannot store the model in" in output_of(process)
    assert not server.requests
