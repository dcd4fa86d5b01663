"""TLS of the server: the operator's files, checked before the socket listens, so that no client finds the mistake."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ajet_core.errors import ConfigError

log = logging.getLogger("ajet.tls")

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = "PRIVATE KEY-----"
_OTHERS_MAY_READ = 0o077


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: the server's certificate, then those between it and its authority, if there are any.
        key: its private key, without a password: nobody is there to type it when a server is started again.
        client_ca: authorities of clients. With it, who has no certificate of theirs is refused before HTTP begins.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


def read_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Returns the files that were given, None if none was. Raises `ConfigError` for one without those it needs."""
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        field = "tls_cert" if cert is None else "tls_key"
        raise _error(field, "is missing; TLS needs both tls_cert and tls_key, and tls_client_ca needs these")
    return TlsFiles(cert, key, client_ca)


def open_tls(files: TlsFiles) -> ssl.SSLContext:
    """Returns what a server shakes hands with, TLS 1.2 or newer.

    Raises:
        ConfigError: a file is missing or not what it should be, the key is of another certificate or asks for a
            password, or no client would accept the certificate (expired, say); names the option.
    """
    context = _context(files)
    _try(context, files.cert)
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca, "tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(files: TlsFiles) -> ssl.SSLContext:
    _require(files.cert, "tls_cert", _CERTIFICATE, "a certificate")
    _require(files.key, "tls_key", _KEY, "a private key")
    if files.key.stat().st_mode & _OTHERS_MAY_READ:
        log.warning("tls_key: other users may read %s; take that from them with chmod 600", files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: _refuse_password(files.key))
    except ssl.SSLError as error:
        raise _unsuitable(files, error) from error
    return context


def _refuse_password(key: Path) -> NoReturn:
    raise _error("tls_key", f"{key} asks for a password; write it without one (`openssl pkey -in ... -out ...`)")


def _unsuitable(files: TlsFiles, error: ssl.SSLError) -> ConfigError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return _error("tls_key", f"{files.key} is not the key of the certificate {files.cert}; give the one that is")
    return _error(
        "tls_cert", f"{files.cert} and {files.key} cannot be used: {error}; give a PEM certificate and its key"
    )


def _require(file: Path, field: str, mark: str, what: str) -> None:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise _error(field, f"{file} cannot be read: {error.strerror}; give a PEM file with {what}") from error
    if mark.encode() not in text:
        raise _error(field, f"{file} holds no {mark}; give a PEM file with {what}")


def _load_authorities(context: ssl.SSLContext, file: Path, field: str) -> None:
    _require(file, field, _CERTIFICATE, "the authorities' certificates")
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise _error(field, f"{file} cannot be used: {error}; give a PEM file with certificates") from error


def _try(context: ssl.SSLContext, cert: Path) -> None:
    """Shakes hands in memory with a client that trusts this very certificate, so that only its own faults are told."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_authorities(trusting, cert, "tls_cert")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        while not all([_step(client), _step(server)]):
            pass
    except ssl.SSLCertVerificationError as error:
        raise _error("tls_cert", f"no client would accept {cert}: {error.verify_message}; give a valid one") from error


def _step(side: ssl.SSLObject) -> bool:
    """Goes on with a handshake; False while it waits for the other side, which always has something to say next."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _error(field: str, message: str) -> ConfigError:
    return ConfigError(f"{field}: {message}", field=field)
