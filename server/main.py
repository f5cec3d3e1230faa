"""``whisper-stream serve``: flags in, a running daemon, an exit code out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence

from .. import WhisperStreamError
from .app import Hub
from .bridge import Engine
from .config import ServerConfig, parse_flags
from .errors import ConfigError, ListenError
from .listener import DaemonServer, bind
from .wire import STREAM_PATH

__all__ = ["main"]

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1  # something broke while running
EXIT_USAGE = 2  # it could not start as asked
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str], open_engine: Callable[[ServerConfig], Engine] | None = None) -> int:
    """Run the daemon until it is told to stop; return the process's exit code.

    Args:
        argv: the flags, without the program's name.
        open_engine: what brings the model; None loads the one that the flags name.
    """
    try:
        config = parse_flags(argv)
        _configure_logging(config.log_level)
        with bind(config.host, config.port) as sock:  # first: loading a model takes seconds
            engine = (open_engine or _open_engine)(config)
            try:
                asyncio.run(_serve(config, engine, sock))
            finally:
                engine.close()
    except WhisperStreamError as error:
        return _say(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        return _say(f"the daemon failed: {type(error).__name__}: {error}", EXIT_FAILURE)
    return 0


def _open_engine(config: ServerConfig) -> Engine:
    """Load the model; it comes back warmed up. Raises the errors of loading, each one sentence."""
    from ..streamer.engine import open_engine  # loads torch: only once it is needed

    engine: Engine = open_engine(
        config.model,
        device=None if config.device == "auto" else config.device,
        compute_type=config.compute_type,
        threads=config.threads or None,
    )
    known = engine.languages or ("en",)
    if config.language is not None and config.language not in known:
        engine.close()
        raise ConfigError(
            f"--language {config.language!r} is not one that {engine.model_name} knows: "
            f"{', '.join(known)}"
        )
    return engine


async def _serve(config: ServerConfig, engine: Engine, sock: socket.socket) -> None:
    try:
        sock.listen(128)
    except OSError as error:
        raise ListenError(config.host, config.port, error.strerror or str(error)) from None
    url = _url(config.host, sock.getsockname()[1])

    def ready() -> None:
        logger.info("listening on %s model=%s", url, engine.model_name)
        if config.announce:
            sys.stdout.write(json.dumps({"url": url}) + "\n")
            sys.stdout.flush()
        if config.exit_with_stdin:
            threading.Thread(target=_watch_stdin, args=(server,), daemon=True).start()

    server = DaemonServer(Hub(engine, config), config.drain_seconds, ready)
    await server.serve(sockets=[sock])
    logger.info("event=stopped")


def _url(host: str, port: int) -> str:
    return (
        f"ws://[{host}]:{port}{STREAM_PATH}" if ":" in host else f"ws://{host}:{port}{STREAM_PATH}"
    )


def _watch_stdin(server: DaemonServer) -> None:
    """Stop the server when the parent closes our standard input, or is gone."""
    try:
        # Not sys.stdin: its lock would still be held here when the interpreter shuts down.
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # closed from the start: the same as its end
    server.should_exit = True


def _configure_logging(level: str) -> None:
    """Log single lines to stderr. Libraries stay at warnings: at debug they would show messages."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    package = __name__.split(".", maxsplit=1)[0]
    logging.getLogger(package).setLevel(level.upper())


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"whisper-stream: error: {sentence}\n")
    return code
