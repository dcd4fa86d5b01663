"""A certificate authority of the tests' own, made by the `openssl` program."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_CA_EXTENSIONS = "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
_LEAF = "basicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True)
class Issued:
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl program here")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        extensions = [part for text in _CA_EXTENSIONS for part in ("-addext", text)]
        files = ("-keyout", str(self._key), "-out", str(self.cert))
        openssl("req", "-x509", *_CURVE, *files, "-days", "2", "-subj", "/CN=tests", *extensions)

    def issue(self, name: str, days: int = 1) -> Issued:
        """Returns a certificate; with negative `days` one that has expired."""
        made = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(_LEAF)
        openssl("req", "-new", *_CURVE, "-keyout", str(made.key), "-out", str(request), "-subj", f"/CN={name}")
        signer = ("-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial")
        files = ("-in", str(request), "-out", str(made.cert), "-extfile", str(extensions))
        openssl("x509", "-req", *signer, *files, "-days", str(days))
        return made


def openssl(*arguments: str) -> None:
    """Runs the program."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
