"""Keys of an attempt: opaque, unguessable, recomputable by this server alone.

A key is an HMAC of the attempt's random id under the data folder's secret. So nothing but the secret can make one, the
ledger keeps only a digest, and a repeated `open` (a retry after a lost answer) gets the very same keys back.
"""

import base64
import hashlib
import hmac
import os
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ajet_core.errors import StorageError
from ajet_server.durable import flush_folder

Purpose = Literal["agent", "control"]
Scope = Literal["admin", "client"]
_PREFIX: dict[Purpose, str] = {"agent": "sk-ajet-", "control": "ck-ajet-"}
_SECRET_BYTES = 32


class KeyMaker:
    """Makes and digests keys. The secret is 32 random bytes in a file that only its owner may read."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _SECRET_BYTES:
            raise StorageError(
                f"the file `secret` of the data folder must have {_SECRET_BYTES} bytes, it has {len(secret)}; put it "
                "back from a copy, or remove it: keys of open episodes are then refused"
            )
        self._secret = secret

    def key(self, attempt_id: str, purpose: Purpose) -> str:
        """Returns the attempt's key for `purpose`: `agent` (inference) or `control` (finish, abort, heartbeat)."""
        digest = hmac.digest(self._secret, f"{purpose}:{attempt_id}".encode(), "sha256")
        return _PREFIX[purpose] + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@lru_cache
def digest_key(key: str) -> str:
    """Returns what the ledger keeps of a key: its SHA-256, hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_or_make(file: Path, make: bytes) -> bytes:
    """Returns the content of a private file, writing `make` into it (mode 0600) if it is not there yet.

    Raises:
        StorageError: the file cannot be read or written.
    """
    try:
        if not file.exists():
            _write_private(file, make)
        return file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file} cannot be used: {error}") from error


def _write_private(file: Path, content: bytes) -> None:
    # Renamed into place whole: a crash must not leave half a secret behind, which would be refused ever after. Durable
    # before anybody is given a key: a power cut that took the secret away would take the keys of open episodes too.
    work = file.with_name(f".{file.name}")
    work.unlink(missing_ok=True)
    with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    work.replace(file)
    flush_folder(file.parent)


def open_key_maker(data_dir: Path) -> KeyMaker:
    """Returns the key maker of a data folder. Raises `StorageError` for a secret of the wrong length."""
    return KeyMaker(read_or_make(data_dir / "secret", secrets.token_bytes(_SECRET_BYTES)))


def open_token(data_dir: Path, scope: Scope) -> str:
    """Returns a token for `/api` of a data folder, made at first start; who has it may what `routes/access.py` says."""
    made = f"{scope}-ajet-{secrets.token_urlsafe(32)}".encode()
    return read_or_make(data_dir / f"{scope}-token", made).decode().strip()
