import json
import os
import stat
from pathlib import Path

import pytest

from ajet_core.errors import StorageError
from ajet_server.datadir import DataDir, read_server_info


def test_one_server_at_a_time(tmp_path: Path) -> None:
    first = DataDir(tmp_path / "data")
    first.announce("http://127.0.0.1:8000")
    with pytest.raises(
        StorageError, match=rf"in use by another server \(process {os.getpid()}, http://127.0.0.1:8000\)"
    ):
        DataDir(tmp_path / "data")
    first.close()
    assert read_server_info(tmp_path / "data") is None
    DataDir(tmp_path / "data").close()


def test_a_server_that_says_nothing_yet(tmp_path: Path) -> None:
    first = DataDir(tmp_path)
    with pytest.raises(StorageError, match=r"in use by another server$"):
        DataDir(tmp_path)
    first.close()


def test_what_a_killed_server_announced_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://x", "pid": 1, "started_at": 0.0}))
    folder = DataDir(tmp_path)
    assert read_server_info(tmp_path) is None
    folder.close()


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "data")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.checkpoints.is_dir()
    folder.close()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": 1, "pid": "x", "started_at": 0}', "\udcff"])
def test_an_announcement_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read_server_info(tmp_path) is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be used"):
        DataDir(tmp_path / "file" / "data")


def test_a_folder_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StorageError, match="chmod o-w"):
        DataDir(folder)
    folder.chmod(0o775)
    DataDir(folder).close()
