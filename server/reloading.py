"""SIGHUP: keys and certificates are read again while the daemon runs."""

from __future__ import annotations

import logging
import ssl

from .app import Hub
from .errors import ConfigError
from .tls import load_certificate

__all__ = ["reload"]

logger = logging.getLogger(__name__)


def reload(hub: Hub, tls: ssl.SSLContext | None, certificate: str | None, key: str | None) -> None:
    """Read keys and certificates again; what cannot be used is told, and the old stays."""
    try:
        hub.reload_keys()
        if tls is not None and certificate is not None:
            load_certificate(tls, certificate, key)
        logger.info("event=reloaded")
    except ConfigError as error:
        logger.error("event=reload_failed: %s; what was in use before still holds", error)
