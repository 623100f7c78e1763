"""How certificates are judged, and which one is shown."""

import os
import ssl
from pathlib import Path

from fallbackd.core.protocol import Tls


class TlsFiles(Exception):
    """A file that `tls_*` names cannot be used. The text says which one and why."""


def stamps(tls: Tls | None) -> tuple[int, ...]:
    """When the files were changed; 0 for one that is not there."""
    if tls is None:
        return ()
    found = []
    for path in (tls.ca_file, tls.client_cert, tls.client_key):
        if path is not None:
            try:
                found.append(Path(path).expanduser().stat().st_mtime_ns)
            except OSError:
                found.append(0)
    return tuple(found)


def context_of(tls: Tls) -> ssl.SSLContext:
    """
    Raises:
        TlsFiles: A certificate or key that cannot be read.
    """
    import httpx2

    if tls.ca_file is None:
        context = httpx2.create_ssl_context()
    else:
        path = _readable("tls_ca_file", tls.ca_file)
        try:
            context = ssl.create_default_context(cafile=path)
        except (OSError, ValueError) as error:
            raise TlsFiles(f"tls_ca_file {tls.ca_file}: no certificates in PEM form") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert is not None:
        cert = _readable("tls_client_cert", tls.client_cert)
        key = _readable("tls_client_key", tls.client_key) if tls.client_key else None
        try:
            # An empty password keeps OpenSSL from asking for one on a terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            names = " and ".join(one for one in (tls.client_cert, tls.client_key) if one)
            raise TlsFiles(
                f"tls_client_cert {names}: no certificate with its key, without a password"
            ) from error
    return context


def _readable(name: str, path: str) -> str:
    full = os.path.expanduser(path)
    try:
        with open(full, "rb"):
            return full
    except OSError as error:
        raise TlsFiles(f"{name} {path}: {error.strerror or error}") from error
