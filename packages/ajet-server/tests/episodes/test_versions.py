"""Which weight versions may be named, and whose checkpoints stay."""

from pathlib import Path

import pytest

from ajet_core.errors import ConflictError, NotFoundError, UnavailableError
from ajet_server.datadir import checkpoint_name
from ajet_server.episodes.versions import NamedVersions


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    for step in (4, 5):
        (tmp_path / checkpoint_name(step)).mkdir()
    (tmp_path / ".writing-step-000006").mkdir()
    return tmp_path


def test_what_is_there_may_be_named(checkpoints: Path) -> None:
    versions = NamedVersions(checkpoints, 3)
    for version in (0, 4, 5, 4):
        versions.take(version)
    for version in (1, 6):
        with pytest.raises(NotFoundError, match=f"version {version} is not there; there are 0, 4, 5 ") as caught:
            versions.take(version)
        assert caught.value.field == "weights"


def test_as_many_as_the_engine_holds(checkpoints: Path) -> None:
    versions = NamedVersions(checkpoints, 1)
    versions.take(4)
    versions.take(4)
    versions.give_back(4)
    with pytest.raises(UnavailableError, match="open episodes use version 4") as caught:
        versions.take(0)
    assert caught.value.retry_after_s == 1
    versions.give_back(4)
    versions.take(0)


def test_a_job_may_serve_none(checkpoints: Path) -> None:
    with pytest.raises(ConflictError, match="eval_versions is 0"):
        NamedVersions(checkpoints, 0).take(0)


def test_what_an_update_may_remove_is_not_handed_out_meanwhile(checkpoints: Path) -> None:
    versions = NamedVersions(checkpoints, 3)
    versions.take(4)
    with versions.keeping() as kept:
        assert kept == [4]
        versions.take(4)
        versions.take(0)
        with pytest.raises(UnavailableError, match="may remove the checkpoint of version 5"):
            versions.take(5)
    versions.take(5)
