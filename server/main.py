"""``whisper-stream serve``: flags in, a running daemon, an exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from .. import WhisperStreamError
from .access import is_loopback
from .app import Hub
from .bridge import Engine
from .config import ServerConfig
from .errors import ConfigError, ListenError
from .listener import DaemonServer, bind
from .settings import read_settings, to_toml
from .tls import load_certificate, make_certificate, server_context
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
        config, print_only = read_settings(argv, os.environ)
        if print_only:
            sys.stdout.write(to_toml(config))
            return 0
        _configure_logging(config.log_level)
        with bind(config.host, config.port) as sock:  # first: loading a model takes seconds
            with ExitStack() as cleanup:
                tls = _certificate(config, cleanup)
                engine = (open_engine or _open_engine)(config)
                cleanup.callback(engine.close)
                asyncio.run(_serve(config, engine, sock, tls))
    except WhisperStreamError as error:
        return _say(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        return _say(f"the daemon failed: {type(error).__name__}: {error}", EXIT_FAILURE)
    return 0


def _open_engine(config: ServerConfig) -> Engine:
    """Load the model; it comes back warmed up. Raises the errors of loading, each one sentence."""
    from ..streamer.detectors import make_detector
    from ..streamer.engine import open_engine  # loads torch: only once it is needed

    make_detector(config.detector)  # one that is missing is told before the model is loaded
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


def _certificate(config: ServerConfig, cleanup: ExitStack) -> ssl.SSLContext | None:
    if config.self_signed:
        return server_context(*make_certificate(config.host, cleanup))
    if config.tls_cert is not None:
        return server_context(config.tls_cert, config.tls_key)
    return None


async def _serve(
    config: ServerConfig, engine: Engine, sock: socket.socket, tls: ssl.SSLContext | None
) -> None:
    try:
        sock.listen(128)
    except OSError as error:
        raise ListenError(config.host, config.port, error.strerror or str(error)) from None
    url = _url(config, sock.getsockname()[1])
    hub = Hub(engine, config)

    def ready() -> None:
        logger.info("listening on %s model=%s", url, engine.model_name)
        if not (is_loopback(config.host) or hub.entrance.gate.closed):
            logger.warning(
                "event=open_to_all host=%s: whoever reaches this address may use it; see --api-keys",
                config.host,
            )
        if not (is_loopback(config.host) or config.tls):
            logger.warning(
                "event=not_encrypted host=%s: see --tls-cert, --self-signed", config.host
            )
        if config.announce:
            sys.stdout.write(json.dumps({"url": url}) + "\n")
            sys.stdout.flush()
        if config.exit_with_stdin:
            threading.Thread(target=_watch_stdin, args=(server,), daemon=True).start()

    server = DaemonServer(hub, config, ready, tls)
    with contextlib.suppress(NotImplementedError):  # where there is no SIGHUP
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, hub, config, tls)
    await server.serve(sockets=[sock])
    logger.info("event=stopped")


def _reload(hub: Hub, config: ServerConfig, tls: ssl.SSLContext | None) -> None:
    """Read keys and certificates again; what cannot be used is told, and the old stays."""
    try:
        hub.reload_keys()
        if tls is not None and config.tls_cert is not None:
            load_certificate(tls, config.tls_cert, config.tls_key)
        logger.info("event=reloaded")
    except ConfigError as error:
        logger.error("event=reload_failed: %s", error)


def _url(config: ServerConfig, port: int) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'wss' if config.tls else 'ws'}://{host}:{port}{STREAM_PATH}"


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
