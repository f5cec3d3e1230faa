"""A TCP relay between a client and a daemon, whose connections a test can cut at any moment."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

__all__ = ["Relay", "relay"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER that makes close() send a reset


class Relay:
    """Listens on ``port``, and passes every connection on to ``target``; None refuses them."""

    def __init__(self, target: int | None) -> None:
        self.target = target
        self.connections = 0
        self.refused = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, target: int | None = None) -> None:
        """Reset every connection; later ones go to ``target``."""
        with self._lock:
            self.target = target
            for pair in self._pairs:
                for end in pair:
                    with contextlib.suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        end.shutdown(socket.SHUT_RDWR)
                    end.close()
            self._pairs.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self.target is None:
                    client.close()
                    self.refused += 1
                    continue
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self.target))
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relay(target: int | None) -> Iterator[Relay]:
    made = Relay(target)
    try:
        yield made
    finally:
        made.close()
