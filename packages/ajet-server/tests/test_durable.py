"""Folders, keys and tokens survive `kill -9` within any flush, and a power cut once somebody may rely on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from power import Disk, killed_at_each_flush

from ajet_server.datadir import DataDir
from ajet_server.durable import make_folder
from ajet_server.episodes.keys import open_key_maker, open_token


def open_folder(place: Path) -> tuple[str, str, str]:
    """What a server does first. Returns a key and the tokens."""
    data = DataDir(place / "new" / "data")
    try:
        keys = open_key_maker(data.path)
        return keys.key("att_1", "agent"), open_token(data.path, "admin"), open_token(data.path, "client")
    finally:
        data.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (tmp_path / "root").mkdir()
    found = Disk.watching(tmp_path / "root", tmp_path / "copies", monkeypatch)
    yield found
    found.close()


def test_a_process_killed_while_it_makes_its_folder(tmp_path: Path) -> None:
    left = list(killed_at_each_flush(tmp_path, open_folder))
    assert len(left) >= 6
    for place in left:
        assert open_folder(place) == open_folder(place)


def test_keys_that_were_given_out_survive_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    given = open_folder(tmp_path / "root")
    for place in disk.cut():
        assert open_folder(place) == given


def test_a_power_cut_before_that_leaves_a_folder_that_can_be_used(tmp_path: Path, disk: Disk) -> None:
    open_folder(tmp_path / "root")
    assert disk.moments
    for place in list(disk.moments):
        assert open_folder(place) == open_folder(place)


def test_folders_that_were_made_stay(tmp_path: Path, disk: Disk) -> None:
    make_folder(tmp_path / "root" / "a" / "b")
    make_folder(tmp_path / "root" / "a" / "b")
    assert all((place / "a" / "b").is_dir() for place in disk.cut())
