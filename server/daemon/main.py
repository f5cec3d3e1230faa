"""``whisper-stream serve``: flags in, a running daemon, an exit code out.

THREADS AND PROCESSES, and what belongs to each::

    one process (default)
      event loop        sockets, streams, sessions, limits, counts: everything but the model
      decode-engine-N   one thread for each backend: the model
      decode-results    one thread: results of finished jobs, while the next ones are decoded
      journal           one thread: writes to SQLite
      container         one thread for each stream of compressed audio: the decoder of its container
      worker threads    replay of a stream from the journal, before the loop sees it
      stdin             one thread with --exit-with-stdin: waits for its end

    --engines N: N engine processes, each with the threads of its own engine
      event loop        the channel to the parent, which sends jobs
      decode threads    as above; they send results themselves, as sending never waits

    --ingress N: N ingress processes with an event loop and a journal thread each; the parent has
      event loop        the channels; starts processes again; no client
      decode threads    as above, unless there are engine processes too

* An object belongs to the event loop of its process, unless its docstring names a thread.
* Called from other threads: ``Engine.submit`` (guarded by a condition), ``Channel.send`` (by a lock),
  ``Journal``'s queue, ``DaemonServer.request_exit`` (sets a flag).
* A ``concurrent.futures.Future`` carries a result from a thread to the loop, which takes it with ``wrap_future``
  or ``call_soon_threadsafe``.
* Shared memory: audio slots have one writer and one reader; each process writes its own row of the counters, and
  what several write is guarded by a lock on the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ... import WhisperStreamError
from ..cluster.engine_pool import COMMAND as ENGINE_COMMAND
from ..cluster.engine_pool import EnginePool
from ..cluster.supervisor import COMMAND as INGRESS_COMMAND
from ..cluster.supervisor import Supervisor
from ..config import ServerConfig, read_settings, to_toml
from ..engine import Engine, load_engine
from ..errors import ListenError, ProcessError
from ..http.app import KEYS_VARIABLE, Hub
from ..http.auth import Authenticator, is_loopback, read_keys
from ..http.debug import check_debug
from ..process_stats import ProcessStats
from ..protocol.messages import STREAM_PATH
from .listener import DaemonServer, bind, bind_several, reload
from .process import configure_logging, freeze_gc
from .tls import fingerprint, make_certificate, server_context

__all__ = ["main"]

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1  # something broke while running
EXIT_USAGE = 2  # it could not start as asked
EXIT_INTERRUPTED = 130

_Certificate = tuple[str, str | None]


def main(
    argv: Sequence[str],
    open_engine: Callable[[ServerConfig], Engine] | None = None,
    ingress_command: Sequence[str] = INGRESS_COMMAND,
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> int:
    """Run the daemon until a signal stops it; return the process's exit code.

    Args:
        argv: the flags, without the program's name.
        open_engine: loads the model; None: as the flags say.
        ingress_command: starts an ingress process, where there are any.
        engine_command: starts an engine process, where there are any.
    """
    try:
        config, print_only = read_settings(argv, os.environ)
        if print_only:
            sys.stdout.write(to_toml(config))
            return 0
        configure_logging(config.log_level)
        with ExitStack() as cleanup:
            # first: loading a model takes seconds
            sockets = [cleanup.enter_context(sock) for sock in _bind(config)]
            certificate = _certificate(config, cleanup)
            engine = open_engine(config) if open_engine else _open_engine(config, engine_command)
            cleanup.callback(engine.close)
            if config.ingress:
                asyncio.run(_supervise(config, engine, sockets, certificate, ingress_command))
            else:
                asyncio.run(_serve(config, engine, sockets[0], certificate))
    except ProcessError as error:
        return _say(str(error), EXIT_FAILURE)
    except WhisperStreamError as error:
        return _say(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        return _say(f"the daemon failed: {type(error).__name__}: {error}", EXIT_FAILURE)
    return 0


def _open_engine(config: ServerConfig, command: Sequence[str]) -> Engine:
    if config.engines:
        # as with a single engine: the daemon is started again, and a journal restores its streams
        return EnginePool(config, lambda: os._exit(os.EX_SOFTWARE), command)
    return load_engine(config)


def _start_pool(engine: Engine) -> Callable[[], ProcessStats]:
    """Begin to take results of engine processes, if there are any; return what measures their use."""
    if isinstance(engine, EnginePool):
        engine.start()
        return engine.usage
    return ProcessStats


def _bind(config: ServerConfig) -> list[socket.socket]:
    if config.ingress:
        return bind_several(config.host, config.port, config.ingress)
    return [bind(config.host, config.port)]


def _certificate(config: ServerConfig, cleanup: ExitStack) -> _Certificate | None:
    """Return the paths of certificate and key, which were checked; None: no TLS. Raises ConfigError."""
    paths: _Certificate
    if config.self_signed:
        paths = make_certificate(config.host, cleanup)
        logger.info(
            "event=self_signed certificate=%s sha256=%s: clients take it with SSL_CERT_FILE=%s",
            paths[0],
            fingerprint(paths[0]),
            paths[0],
        )
    elif config.tls_cert is not None:
        paths = config.tls_cert, config.tls_key
    else:
        return None
    server_context(*paths)
    return paths


async def _serve(
    config: ServerConfig, engine: Engine, sock: socket.socket, certificate: _Certificate | None
) -> None:
    try:
        sock.listen(128)
    except OSError as error:
        raise ListenError(config.host, config.port, error) from None
    usage = _start_pool(engine)
    hub = Hub(engine, config, engine_usage=usage)
    tls = None if certificate is None else server_context(*certificate)

    def ready() -> None:
        _say_ready(config, sock, engine.model_name, closed=hub.handshake.authenticator.needs_key)
        if config.exit_with_stdin:
            _watch_stdin(server.request_exit)

    server = DaemonServer(hub, config, ready, tls)
    with contextlib.suppress(NotImplementedError):  # where there is no SIGHUP
        files = certificate if config.tls_cert is not None else None
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, reload, hub, tls, *(files or (None, None))
        )
    await server.serve(sockets=[sock])
    logger.info("event=stopped")


async def _supervise(
    config: ServerConfig,
    engine: Engine,
    sockets: Sequence[socket.socket],
    certificate: _Certificate | None,
    command: Sequence[str],
) -> None:
    """Run ingress processes: this process keeps the engine, and serves no client itself."""
    usage = _start_pool(engine)
    # Checked here, once, and not by every process.
    authenticator = Authenticator(
        read_keys(config.api_keys, os.environ.get(KEYS_VARIABLE)), (), local=True
    )
    check_debug(config, authenticator)
    loop = asyncio.get_running_loop()

    def ready() -> None:
        _say_ready(config, sockets[0], engine.model_name, closed=authenticator.needs_key)
        if config.exit_with_stdin:
            _watch_stdin(lambda: loop.call_soon_threadsafe(supervisor.stop))

    def stop(number: signal.Signals) -> None:
        supervisor.stop()
        loop.remove_signal_handler(
            number
        )  # a second one ends this process at once, and so all others
        signal.signal(number, signal.SIG_DFL)

    supervisor = Supervisor(engine, config, sockets, certificate, ready, command, usage)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, supervisor.send_signal, signal.SIGHUP)
    await supervisor.run()
    logger.info("event=stopped")


def _say_ready(config: ServerConfig, sock: socket.socket, model: str, *, closed: bool) -> None:
    freeze_gc()
    url = _url(config, sock.getsockname()[1])
    logger.info("listening on %s model=%s", url, model)
    if not (is_loopback(config.host) or closed):
        logger.warning(
            "event=open_to_all host=%s: whoever reaches this address may use it; see --api-keys",
            config.host,
        )
    if not (is_loopback(config.host) or config.tls):
        logger.warning("event=not_encrypted host=%s: see --tls-cert, --self-signed", config.host)
    if config.announce:
        sys.stdout.write(json.dumps({"url": url}) + "\n")
        sys.stdout.flush()


def _url(config: ServerConfig, port: int) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'wss' if config.tls else 'ws'}://{host}:{port}{STREAM_PATH}"


def _watch_stdin(stop: Callable[[], object]) -> None:
    """Call ``stop`` when the parent closes our standard input, or is gone."""

    def watch() -> None:
        try:
            # Not sys.stdin: its lock would still be held here when the interpreter shuts down.
            while os.read(0, 4096):
                pass
        except OSError:
            pass  # closed from the start: the same as its end
        stop()

    threading.Thread(target=watch, daemon=True).start()


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"whisper-stream: error: {sentence}\n")
    return code
