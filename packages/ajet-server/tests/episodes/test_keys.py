"""Keys: opaque, recomputable by the secret alone, in files that only their owner may read."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import StorageError
from ajet_server.episodes.keys import KeyMaker, digest_key, open_key_maker, open_token


@given(st.binary(min_size=32, max_size=32), st.text(), st.text())
def test_a_key_names_one_attempt_and_one_purpose(secret: bytes, attempt: str, other: str) -> None:
    keys = KeyMaker(secret)
    assert keys.key(attempt, "agent") == KeyMaker(secret).key(attempt, "agent")
    assert keys.key(attempt, "agent") != keys.key(attempt, "control")
    assert (keys.key(attempt, "agent") == keys.key(other, "agent")) == (attempt == other)
    assert digest_key(keys.key(attempt, "agent")) != keys.key(attempt, "agent")


def test_another_secret_makes_other_keys() -> None:
    assert KeyMaker(b"a" * 32).key("att_1", "agent") != KeyMaker(b"b" * 32).key("att_1", "agent")


def test_the_files_are_private_and_kept(tmp_path: Path) -> None:
    key = open_key_maker(tmp_path).key("att_1", "agent")
    token = open_token(tmp_path, "admin")
    assert open_key_maker(tmp_path).key("att_1", "agent") == key
    assert open_token(tmp_path, "admin") == token
    assert {file.name for file in tmp_path.iterdir()} == {"secret", "admin-token"}
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_a_crash_left_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / ".secret").write_bytes(b"half")
    open_key_maker(tmp_path)


def test_a_secret_of_the_wrong_length_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(StorageError, match=r"`secret`.*must have 32 bytes, it has 5"):
        open_key_maker(tmp_path)


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    with pytest.raises(StorageError, match="secret cannot be used"):
        open_key_maker(tmp_path)


def test_keys_and_tokens_cannot_be_guessed(tmp_path: Path) -> None:
    """256 random bits each, and no two servers share any."""
    made: set[str] = set()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        keys = open_key_maker(folder)
        assert len((folder / "secret").read_bytes()) == 32
        made |= {keys.key("att_1", "agent"), keys.key("att_1", "control")}
        made |= {open_token(folder, "admin"), open_token(folder, "client")}
    assert len(made) == 8
    assert all(len(key.split("ajet-", 1)[1]) == 43 for key in made), "32 bytes in base64"
