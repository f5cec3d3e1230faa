"""The daemon's options, and the flags made from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, get_args

from msgspec import UnsetType

from ..streamer.config import DetectorName, PolicyName, StreamConfig
from .bounds import MOST_INGRESS, check_bounds, flag_of
from .errors import ConfigError
from .wire import DEFAULT_PORT, Config, Start

__all__ = ["MOST_INGRESS", "ServerConfig", "flag_of"]


def _option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the daemon listens, decodes and treats its streams.

    Raises ConfigError when a value is out of range.
    """

    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(DEFAULT_PORT, "port to listen on; 0 picks a free one")
    model: str = _option("tiny.en", "model name or path")
    device: str = _option("auto", "where the model runs: auto, cpu or cuda")
    compute_type: str = _option(
        "auto",
        "precision of the weights: auto (the fastest here), float32, float16, bfloat16 or int8",
    )
    threads: int = _option(0, "CPU threads of the model, 512 at most; 0 takes all")
    ingress: int = _option(
        0, "processes that hold connections and streams, beside the model's own; 0: one does it all"
    )
    engines: int = _option(
        0,
        "processes with a model each, that share the decoding: for GPUs that one process cannot fill; "
        "0: the daemon's own process decodes",
    )
    language: str | None = _option(None, "language of streams that name none; default: detect")
    languages: str | None = _option(
        None, "languages that may be detected, such as en,de; default: any"
    )
    hotwords: str | None = _option(None, "words to expect in streams that name none; default: none")
    policy: PolicyName = _option(
        "local-agreement", "which words are committed", get_args(PolicyName)
    )
    detector: DetectorName = _option(
        "webrtc", "what tells speech from noise; silero is an extra", get_args(DetectorName)
    )
    max_streams: int = _option(64, "streams served at once; more are refused")
    max_load: float = _option(
        0.9,
        "share of the engine's time, above which streams are taken one at a time and as --max-delay "
        "allows; 0: none is refused for load",
    )
    max_delay: float = _option(
        4.0,
        "seconds in which 19 of 20 words shall be committed: a stream that would make them later is "
        "refused; 0: whatever goes beyond --max-load is",
    )
    api_keys: str | None = _option(
        None,
        "file of keys, one NAME:KEY a line; default: WHISPER_STREAM_API_KEYS, else none is needed",
    )
    allowed_origins: str = _option(
        "", "web pages that may connect besides our own: origins with commas between, or *"
    )
    tls_cert: str | None = _option(None, "certificate chain (PEM): serve wss and https")
    tls_key: str | None = _option(None, "private key of --tls-cert (PEM)")
    self_signed: bool = _option(
        False, "serve wss and https with a certificate of its own, kept in the cache"
    )
    handshake_timeout: float = _option(10.0, "seconds a connection may take for its request")
    idle_timeout: float = _option(300.0, "seconds a client may neither send nor read")
    drain_seconds: float = _option(10.0, "seconds that open streams get to finish on a stop")
    resume_seconds: float = _option(60.0, "seconds a stream waits for its client to reconnect")
    journal: str | None = _option(
        None, "file that keeps open streams, so that they survive a restart; default: none"
    )
    journal_limit: float = _option(
        512.0, "MiB that one stream may take in the journal; a longer one goes on without it"
    )
    retain_seconds: float = _option(600.0, "seconds that a finished transcript can be fetched")
    retain_sessions: int = _option(1000, "finished transcripts kept at most")
    endpoint_silence: float = _option(0.6, "seconds of silence that end an utterance, 0.1 to 10")
    update_interval: float = _option(0.4, "least seconds of new audio between two updates")
    debug: bool = _option(
        False, "show what streams say on the page /debug, on this machine or to the key named debug"
    )
    log_level: str = _option(
        "info", "least severe level logged", ("debug", "info", "warning", "error")
    )
    announce: bool = _option(False, "print one JSON line with the address on stdout once ready")
    exit_with_stdin: bool = _option(False, "stop when standard input ends")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("--tls-key needs --tls-cert")
        if self.self_signed and self.tls_cert is not None:
            raise ConfigError("--self-signed and --tls-cert exclude each other")
        if self.language is not None and self.languages is not None:
            if self.language not in self.allowed_languages:
                raise ConfigError(
                    f"--language {self.language} is not among --languages {self.languages}; add it there, "
                    "or leave one of the two out"
                )
        try:
            StreamConfig(policy=self.policy, languages=self.allowed_languages)
        except ValueError as error:  # it begins with the option's name
            raise ConfigError(f"--{error}") from error

    @property
    def allowed_languages(self) -> tuple[str, ...]:
        """Codes of the languages that may be detected; none: any."""
        return tuple(code.strip() for code in (self.languages or "").split(",") if code.strip())

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.self_signed or self.tls_cert is not None

    def stream_config(self, start: Start, *, english_only: bool) -> StreamConfig:
        """Return the options of the stream that ``start`` asks for."""
        language = start.language or self.language
        return StreamConfig(
            language="en" if english_only else language,
            task=start.task,
            prompt=start.prompt,
            endpoint_silence=(
                self.endpoint_silence if start.endpoint_silence is None else start.endpoint_silence
            ),
            update_interval=self.update_interval,
            languages=start.languages or self.allowed_languages,
            hotwords=start.hotwords or self.hotwords or "",
            policy=self.policy,
            detector=self.detector,
        )

    def changed(self, config: StreamConfig, changes: Config, *, english_only: bool) -> StreamConfig:
        """Return the options of a stream after a ``config`` message."""
        new: dict[str, Any] = {}
        if not isinstance(changes.language, UnsetType) and not english_only:
            new["language"] = changes.language
        for name in ("languages", "prompt", "hotwords"):
            if not isinstance(value := getattr(changes, name), UnsetType):
                new[name] = value
        if not isinstance(changes.endpoint_silence, UnsetType):
            new["endpoint_silence"] = changes.endpoint_silence or self.endpoint_silence
        return dataclasses.replace(config, **new)
