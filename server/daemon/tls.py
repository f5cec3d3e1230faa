"""Certificates: read from files, or made and kept for a local network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ...model.weights.locate import cache_dir
from ..errors import ConfigError

__all__ = ["fingerprint", "load_certificate", "make_certificate", "server_context"]

_DAYS = 365
_LEAST_SECONDS = 30 * 86_400  # a kept certificate that ends sooner is made anew
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")
_ELSEWHERE = ("192.0.2.1", 9)  # for documentation (RFC 5737); nothing is sent there


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return a TLS context, for version 1.2 or later.

    Args:
        certificate: path of the chain, PEM.
        key: path of the private key; None: it is in the same file.

    Raises:
        ConfigError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Use these files for connections from now on; raises ConfigError, and leaves all as it was."""
    try:
        for path in (certificate, key):
            if path is not None:
                Path(path).read_bytes()  # only this names the file that is missing
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise ConfigError(_no_pair(certificate, key)) from None
    except OSError as error:
        flag = "--tls-cert" if error.filename == certificate else "--tls-key"
        raise ConfigError(f"{flag} {error.filename} cannot be used ({error.strerror})") from None
    context.load_cert_chain(certificate, key)


def _no_pair(certificate: str, key: str | None) -> str:
    if key is None:
        return f"--tls-cert {certificate} cannot be used: it is not PEM, or lacks the key; give --tls-key"
    return f"--tls-cert {certificate} and --tls-key {key} cannot be used (not a PEM pair that fits)"


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of the first certificate in the file, as openssl and browsers show it."""
    first = Path(certificate).read_text(encoding="ascii").partition("-----END")[0]
    der = ssl.PEM_cert_to_DER_cert(first + "-----END CERTIFICATE-----\n")
    return hashlib.sha256(der).digest().hex(":").upper()


def make_certificate(host: str, cleanup: ExitStack) -> tuple[str, str]:
    """Return the paths of a self-signed certificate and its key.

    They are kept in the user's cache, so that clients that trust it still do after a restart.

    Args:
        host: that the daemon listens on; becomes one of the certificate's names.
        cleanup: removes the files at the end, where nothing can be kept.

    Raises:
        ConfigError: there is no ``openssl``, or it fails.
    """
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError("--self-signed needs the openssl program; install it, or give --tls-cert")
    names = _names(host)
    # One for each set of names: daemons with different addresses do not take turns in one file.
    title = hashlib.sha256(names.encode()).hexdigest()[:12]
    try:
        folder = cache_dir() / "self-signed" / title
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_good(program, folder):
            _make(program, names, folder)
    except OSError:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="whisper-stream-")))
        _make(program, names, folder)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def _is_good(program: str, folder: Path) -> bool:
    """Return whether ``folder`` has a pair that belongs to this user alone, fits, and does not expire soon."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    if not (certificate.is_file() and key.is_file()):
        return False
    if sys.platform != "win32":
        facts = key.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            return False
    try:
        server_context(str(certificate), str(key))
    except ConfigError:
        return False
    command = [program, "x509", "-checkend", str(_LEAST_SECONDS), "-noout", "-in", str(certificate)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _make(program: str, names: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as place:
        certificate, key = Path(place, "cert.pem"), Path(place, "key.pem")
        command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-nodes", "-days", str(_DAYS), "-subj", "/CN=whisper-stream"]
        for extension in (
            f"subjectAltName={names}",
            "keyUsage=critical,digitalSignature,keyCertSign",  # both: it vouches for itself
            "extendedKeyUsage=serverAuth",
        ):
            command += ["-addext", extension]
        command += ["-keyout", str(key), "-out", str(certificate)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ConfigError("openssl could not make a certificate; give --tls-cert and --tls-key")
        key.chmod(0o600)
        key.replace(folder / "key.pem")
        certificate.replace(folder / "cert.pem")


def _names(host: str) -> str:
    """Return the names and addresses of this machine, and ``host``, as ``subjectAltName``."""
    hosts = ["localhost", "127.0.0.1", "::1", socket.gethostname(), _lan_address(), host]
    entries: dict[str, None] = {}
    for each in hosts:
        if each in ("", "0.0.0.0", "::"):
            continue
        numeric = each.replace(".", "").isdigit() or ":" in each
        if numeric or _HOST_NAME.fullmatch(each):
            entries[f"{'IP' if numeric else 'DNS'}:{each}"] = None
    return ",".join(entries)


def _lan_address() -> str:
    """Return the address from which this machine reaches others; empty where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(_ELSEWHERE)  # of a datagram socket: looks up a route, and sends nothing
            return str(sock.getsockname()[0])
        except OSError:
            return ""
