"""A server in the background leaves nothing that other users can read, and writes nowhere else."""

import stat
from pathlib import Path

import pytest

from ajet_cli.spawn import spawn_server
from ajet_core.errors import EngineFailedError


def test_the_folder_and_log_of_a_detached_server_are_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with pytest.raises(EngineFailedError, match=r"model\.path"):
        spawn_server(data_dir, ["--port", "0", "model.path=/no/such/folder"])
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in data_dir.rglob("*") if file.is_file()} == {0}


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "server.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        spawn_server(tmp_path, [])
    assert not (tmp_path / "elsewhere").exists()
