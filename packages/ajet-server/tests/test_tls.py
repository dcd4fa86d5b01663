"""TLS files: what is wrong with them is told before anything listens."""

import logging
import ssl
import stat
from pathlib import Path

import pytest
from tls_helpers import Authority, Issued, openssl

from ajet_core.errors import ConfigError
from ajet_server.tls import TlsFiles, open_tls, read_tls


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("server")


def refusal(field: str, cert: Path, key: Path, client_ca: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        open_tls(TlsFiles(cert, key, client_ca))
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
    return caught.value.message


def test_what_suits(authority: Authority, issued: Issued) -> None:
    alone = open_tls(TlsFiles(issued.cert, issued.key))
    assert alone.minimum_version is ssl.TLSVersion.TLSv1_2
    assert alone.verify_mode is ssl.CERT_NONE
    mutual = open_tls(TlsFiles(issued.cert, issued.key, authority.cert))
    assert mutual.verify_mode is ssl.CERT_REQUIRED


def test_a_chain(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(issued.cert.read_bytes() + authority.cert.read_bytes())
    open_tls(TlsFiles(chain, issued.key))


def test_a_missing_file(issued: Issued, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    assert "cannot be read: No such file" in refusal("tls_cert", nothing, issued.key)
    assert "cannot be read: No such file" in refusal("tls_key", issued.cert, nothing)
    assert "cannot be read: No such file" in refusal("tls_client_ca", issued.cert, issued.key, nothing)


def test_what_is_no_pem(issued: Issued, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("hello")
    assert "holds no -----BEGIN CERTIFICATE-----" in refusal("tls_cert", text, issued.key)
    assert "holds no PRIVATE KEY-----" in refusal("tls_key", issued.cert, text)
    assert "holds no -----BEGIN CERTIFICATE-----" in refusal("tls_client_ca", issued.cert, issued.key, text)
    assert "holds no PRIVATE KEY-----" in refusal("tls_key", issued.cert, issued.cert)


def test_a_broken_pem(issued: Issued, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n")
    assert "give a PEM certificate and its key" in refusal("tls_cert", broken, issued.key)
    assert "cannot be used" in refusal("tls_client_ca", issued.cert, issued.key, broken)


def test_the_key_of_another_certificate(authority: Authority, issued: Issued) -> None:
    other = authority.issue("other")
    assert f"{other.key} is not the key of the certificate {issued.cert}" in refusal("tls_key", issued.cert, other.key)


def test_a_key_with_a_password(issued: Issued, tmp_path: Path) -> None:
    """Nobody is there to type it: it is refused, and nothing asks at the terminal."""
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", str(issued.key), "-out", str(locked), "-aes256", "-passout", "pass:secret")
    assert "asks for a password" in refusal("tls_key", issued.cert, locked)


def test_a_certificate_that_no_client_would_accept(authority: Authority) -> None:
    expired = authority.issue("expired", days=-1)
    assert "certificate has expired" in refusal("tls_cert", expired.cert, expired.key)


def test_a_key_that_others_may_read(issued: Issued, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    key = tmp_path / "shared.key"
    key.write_bytes(issued.key.read_bytes())
    for mode, told in ((0o600, False), (0o640, True), (0o604, True)):
        caplog.clear()
        key.chmod(mode)
        assert stat.S_IMODE(key.stat().st_mode) == mode
        with caplog.at_level(logging.WARNING, "ajet.tls"):
            open_tls(TlsFiles(issued.cert, key))
        assert ("chmod 600" in caplog.text) == told


def test_both_or_neither(tmp_path: Path) -> None:
    cert, key = tmp_path / "a", tmp_path / "b"
    assert read_tls(None, None, None) is None
    assert read_tls(cert, key, None) == TlsFiles(cert, key)
    for files, field in (
        ((cert, None, None), "tls_key"),
        ((None, key, None), "tls_cert"),
        ((None, None, cert), "tls_cert"),
    ):
        with pytest.raises(ConfigError, match="needs both") as caught:
            read_tls(*files)
        assert caught.value.field == field
