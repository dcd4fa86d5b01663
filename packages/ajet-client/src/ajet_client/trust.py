"""What a client of an HTTPS server trusts, and how it says who it is."""

import ssl
from pathlib import Path

from ajet_core.errors import RequestError


def trust(
    url: str, ca_file: str | Path | None, client_cert: tuple[str | Path, str | Path] | None
) -> ssl.SSLContext | None:
    """Returns the context of connections to `url`; None for the default: the system's authorities or `SSL_CERT_FILE`.

    Args:
        url: of the server.
        ca_file: PEM file of the authorities to trust instead.
        client_cert: PEM files of this client's certificate and of its key.

    Raises:
        RequestError: a file cannot be used, or `url` is not of HTTPS, where neither has an effect.
    """
    if ca_file is None and client_cert is None:
        return None
    if not url.startswith("https://"):
        field = "client_cert" if ca_file is None else "ca_file"
        raise RequestError(f"{field} has no effect with {url!r}; begin url with https://", field=field)
    context = _trusting(ca_file)
    if client_cert is not None:
        _identify(context, *client_cert)
    return context


def _trusting(ca_file: str | Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl's own errors are some of these
        raise RequestError(
            f"ca_file: {ca_file} cannot be used: {error}; give a PEM file with certificates", field="ca_file"
        ) from error


def _identify(context: ssl.SSLContext, cert: str | Path, key: str | Path) -> None:
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise RequestError(
            f"client_cert: {cert} and {key} cannot be used: {error}; give PEM files of a certificate and of its key",
            field="client_cert",
        ) from error
