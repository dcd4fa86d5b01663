"""`ajet policy simulate` on a ledger that was written here."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.config import BatchConfig, Job, ModelConfig
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.steps import set_meta

_START = 1_700_000_000.0


def _episode(db: sqlite3.Connection, group: str, number: int, closed_at: float, reward: float) -> None:
    name = f"{group}-{number}"
    db.execute(
        "INSERT INTO episodes (id, attempt_id, request_id, group_id, group_named, task_id, task, kind, status,"
        " client_id, api_key_hash, control_key_hash, weight_version, opened_at, closed_at, reward)"
        " VALUES (:id, :id, :id, :group, 1, 't', 'null', 'train', 'finished', 'c', :id, :id, 0, :at, :closed, :reward)",
        {"id": name, "group": group, "at": _START + closed_at - 20, "closed": _START + closed_at, "reward": reward},
    )


def _fill(db: sqlite3.Connection) -> None:
    """Six groups of two, one every 100 s; the rewards of each second one differ."""
    for group in range(6):
        for number in range(2):
            _episode(db, f"g{group}", number, 100.0 * (group + 1), float(number * (group % 2)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    job = Job(model=ModelConfig(path="m"), batch=BatchConfig(policy="groups", size=3, group_size=2))
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.write_now(lambda db: set_meta(db, "job", job.model_dump_json(exclude_unset=True)))
        ledger.write_now(_fill)
    return folder


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["policy", "simulate", *arguments])


def _taken(*arguments: str) -> list[list[str]]:
    found = _run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return [
        sorted({name.split("-")[0] for name in update["episodes"]}) for update in json.loads(found.stdout)["updates"]
    ]


def test_as_it_was(folder: Path) -> None:
    assert _taken(str(folder)) == [["g0", "g1", "g2"], ["g3", "g4", "g5"]]
    assert _taken(str(folder / "ledger.sqlite")) == _taken(str(folder))


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (("--policy", "informative_groups", "batch.size=2"), [["g1", "g3"]]),
        (("--policy", "informative_groups", "batch.size=1"), [["g1"], ["g3"], ["g5"]]),
        (("--policy", "episodes", "batch.size=10"), [["g0", "g1", "g2", "g3", "g4"]]),
        (("--policy", "groups >= 2"), [["g0", "g1"], ["g2", "g3"], ["g4", "g5"]]),
        (("--policy", "groups >= 3 or waited > 150s"), [["g0", "g1"], ["g2", "g3"]]),
        (("--policy", "all_clients"), []),
    ],
)
def test_other_policies(folder: Path, arguments: tuple[str, ...], taken: list[list[str]]) -> None:
    assert _taken(str(folder), *arguments) == taken


def test_for_people(folder: Path) -> None:
    lines = _run(str(folder), "--policy", "groups >= 2 or waited > 150s").output.splitlines()
    assert lines[0] == "policy    groups, when groups >= 2 or waited > 150s"
    assert lines[2].split() == ["1", "0:02:00", "0:02:00", "4", "2", "groups", "2,", "waited", "100s"]
    assert lines[-2:] == [
        "updates   3 in 0:08:40; the server itself made 0",
        "at last   groups is 0, not >= 2, or waited is 0s, not > 150s",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "groups >="), "column 10: expected a name or a number"),
        (("--policy", "groups >= 9"), "is never true: groups is from 0 to 3"),
        (("batch.size=none",), "batch.size"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    found = _run(str(folder), *arguments)
    assert said in str(found.exception)


def test_a_ledger_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no ledger" in str(_run(str(tmp_path)).exception)
    assert not list(tmp_path.iterdir())
