"""Whatever becomes of the process that has a stream: who asks another for it is told to try again."""

from __future__ import annotations

import http.client
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.server import ServerConnection, unix_serve
from whisper_stream.server.protocol import messages as wire

from ...helpers.ingress_rig import Running, running

OFTEN = 10  # connections: some meet the other of two processes
OWNED = "00" + "a" * 14  # ids of streams of process 0, whatever number there is
LAST_WORDS = 40


def hangs_up(connection: socket.socket) -> None:
    """A process that dies with the request unread."""
    connection.recv(1)


def dies_in_its_answer(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\nHal"
    )


def has_no_time(connection: socket.socket) -> None:
    """As a process answers that ends before it could serve the request."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def stops_at_once(owner: ServerConnection) -> None:
    owner.close(1012, "shutting_down")


def stops_later(owner: ServerConnection) -> None:
    owner.recv()
    owner.close(1012, "shutting_down")


def dies(owner: ServerConnection) -> None:
    owner.recv()
    owner.socket.shutdown(socket.SHUT_RDWR)


def says_much_and_ends(owner: ServerConnection) -> None:
    owner.recv()
    for number in range(LAST_WORDS):
        owner.send(f'{{"type":"flushed","seq":{number + 1},"id":"","time":1.0}}')
    owner.close(1000, "done")


@contextmanager
def raw(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):  # closed: the test is over
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


@contextmanager
def polite(path: Path, answer: Callable[[ServerConnection], None]) -> Iterator[None]:
    protocols = [*wire.SUBPROTOCOLS]
    options: dict[str, Any] = {"subprotocols": protocols, "max_queue": None}
    with unix_serve(answer, str(path), **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(20)


@pytest.fixture(scope="module")
def there() -> Iterator[tuple[Running, Path]]:
    """Two processes, and the path at which the first is reached by the second: there is nobody now."""
    with tempfile.TemporaryDirectory() as folder:
        with running("--ingress", "2", environment={"TMPDIR": folder}) as started:
            (path,) = Path(folder).glob("whisper-stream-*/0.sock")
            path.unlink()
            yield started, path
            code, log = started.stop()
    assert code == 0 and "ERROR" not in log


@contextmanager
def owner(path: Path, answer: Callable[..., None] | None) -> Iterator[None]:
    """What is found where process 0 should be."""
    if answer is None:
        yield
        return
    is_raw = answer in (hangs_up, dies_in_its_answer, has_no_time)
    with raw(path, answer) if is_raw else polite(path, answer):
        yield
    path.unlink(missing_ok=True)


ENDS = [None, hangs_up, dies_in_its_answer, has_no_time, stops_at_once, stops_later, dies]


@pytest.mark.parametrize("answer", ENDS)
def test_a_resume_is_sent_away_to_come_again(
    there: tuple[Running, Path], answer: Callable[..., None] | None
) -> None:
    met = set()
    with owner(there[1], answer):
        for _ in range(OFTEN):
            with there[0].connect() as peer:
                peer.send(wire.Resume(session=OWNED, token="any", seq=0))
                messages, code, _ = peer.rest()
                kinds = {m.code for m in messages if isinstance(m, wire.Error)}
                met.add((code, *kinds))
    # Process 0 itself knows no such stream.
    assert (1012,) in met and met <= {(1012,), (1008, "unknown_session")}


@pytest.mark.parametrize("answer", [None, hangs_up, dies_in_its_answer, has_no_time])
def test_a_request_is_answered_503_to_come_again(
    there: tuple[Running, Path], answer: Callable[..., None] | None
) -> None:
    met = set()
    url = f"{there[0].url.removesuffix(wire.STREAM_PATH)}/v1/sessions/{OWNED}/watch?key=any"
    with owner(there[1], answer):
        for _ in range(OFTEN):
            asked = http.client.HTTPConnection("127.0.0.1", there[0].port, timeout=20)
            asked.request("GET", f"/v1/sessions/{OWNED}.txt?token=any")
            response = asked.getresponse()
            met.add((response.status, response.getheader("Retry-After")))
            asked.close()
            with pytest.raises(InvalidStatus) as refused, there[0].connect(url=url):
                pass
            given = refused.value.response
            met.add((given.status_code, given.headers.get("Retry-After")))
    assert (503, "1") in met and met <= {(503, "1"), (404, None)}


def test_the_last_words_of_a_stream_arrive_whatever_its_client_still_says(
    there: tuple[Running, Path],
) -> None:
    ended = 0
    with owner(there[1], says_much_and_ends):
        for _ in range(OFTEN):
            with there[0].connect() as peer:
                peer.send(wire.Resume(session=OWNED, token="any", seq=0))
                with suppress(ConnectionClosed):
                    for _ in range(200):
                        peer.send(wire.Ping(id="more"))
                messages, code, _ = peer.rest()
                if code != 1008:
                    assert code == 1000
                    assert sum(isinstance(m, wire.Flushed) for m in messages) == LAST_WORDS
                    ended += 1
    assert ended
