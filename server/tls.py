"""Certificates: given as files, or made on the spot for a local network."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from .errors import ConfigError

__all__ = ["load_certificate", "make_certificate", "server_context"]


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return a TLS context (1.2 or later); raises ConfigError if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Use these files for connections from now on; raises ConfigError, and leaves all as it was."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        reason = (
            error.strerror if isinstance(error, FileNotFoundError) else "not a PEM pair that fits"
        )
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used ({reason})"
        ) from None
    context.load_cert_chain(certificate, key)


def make_certificate(host: str, cleanup: ExitStack) -> tuple[str, str]:
    """Return the paths of a new self-signed certificate and its key; ``cleanup`` removes them.

    Raises ConfigError where there is no ``openssl``.
    """
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError("--self-signed needs the openssl program; install it, or give --tls-cert")
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="whisper-stream-")))
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = "DNS:localhost,IP:127.0.0.1" + _name(host)
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "365", "-subj", "/CN=whisper-stream"]
    command += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError("openssl could not make a certificate; give --tls-cert and --tls-key")
    return str(certificate), str(key)


def _name(host: str) -> str:
    if host in ("", "0.0.0.0", "::", "localhost", "127.0.0.1"):
        return ""
    numeric = host.replace(".", "").isdigit() or ":" in host
    return f",IP:{host}" if numeric else f",DNS:{host}"
