"""`ajet ledger` on a data folder that was written here."""

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_helpers import history, ids

from ajet_cli.main import main
from ajet_core.config import Job
from ajet_server.capture.steps import set_meta
from ajet_server.datadir import DataDir


@pytest.fixture
def ajet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `ajet ledger`; returns its exit code, and what it wrote to stdout or else to stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["ajet", "ledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out or err

    return run


def write(folder: Path, retention: dict[str, Any] | None = None) -> Path:
    """Lost episodes, one of them large, one that waits, and a job."""
    job = Job.model_validate({"model": {"path": "m"}, "retention": retention or {}})
    with history(folder / "ledger.sqlite") as past:
        past.ledger.write_now(lambda db: set_meta(db, "job", job.model_dump_json(exclude_unset=True)))
        past.open("big")
        past.call("big", prompt_ids=ids(*range(200_000)), prompt_tokens=200_000)
        past.close("big", "aborted")
        past.episode("lost", "expired")
        past.episode("waits")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path)


def dropped(folder: Path) -> set[str]:
    with history(folder / "ledger.sqlite") as past:
        return past.dropped


def damage(folder: Path, sql: str) -> None:
    with history(folder / "ledger.sqlite") as past:
        past.sql(sql)


# check


def test_check(folder: Path, ajet: Any) -> None:
    code, out = ajet("check", folder, "--json")
    assert (code, json.loads(out)) == (
        0,
        {"ok": True, "episodes": 3, "calls": 5, "batches": 0, "checkpoints": 0, "found": 0, "problems": []},
    )
    expected = "3 episodes, 5 calls, 0 updates, 0 checkpoints; nothing is wrong\n"
    assert ajet("check", folder) == (0, expected)


def test_check_names_what_is_wrong(folder: Path, ajet: Any) -> None:
    damage(folder, "UPDATE calls SET prompt_tokens = 3 WHERE id = 'call_lost_0'")
    code, out = ajet("check", folder, "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["found"]) == (1, False, 2)
    assert [problem["id"] for problem in found["problems"]] == ["call_lost_0", "call_lost_1"]
    code, out = ajet("check", folder)
    assert code == 1
    assert "2 problems\ncall call_lost_0 of episode lost has a prompt of 3 tokens, but its pieces make 2\n" in out


def test_check_shortens_a_long_list(folder: Path, ajet: Any) -> None:
    with history(folder / "ledger.sqlite") as past:
        for number in range(25):
            past.open(f"e{number}")
        past.sql("UPDATE episodes SET metrics = '{' WHERE id LIKE 'e%'")
    code, out = ajet("check", folder)
    assert code == 1
    assert "... and 5 problems more, all of them with --json" in out


def test_check_without_a_ledger(tmp_path: Path, ajet: Any) -> None:
    code, err = ajet("check", tmp_path)
    assert (code, "there is no ledger" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


# prune


def test_prune(folder: Path, ajet: Any) -> None:
    code, out = ajet("prune", folder, "--days", "1", "--json")
    found = json.loads(out)
    assert (code, found["episodes"], found["calls"], found["dry_run"]) == (0, 2, 3, False)
    assert found["bytes"] > 800_000
    assert found["file_bytes"] < found["file_bytes_before"] - 700_000
    assert dropped(folder) == {"big", "lost"}
    assert ajet("check", folder)[0] == 0
    assert ajet("prune", folder, "--days", "1")[1].startswith("dropped what 0 calls of 0 episodes hold")


def test_a_dry_run_changes_nothing_and_may_run_beside_a_server(folder: Path, ajet: Any) -> None:
    with history(folder / "ledger.sqlite") as past:
        code, out = ajet("prune", folder, "--days", "1", "--dry-run")
        assert (code, out) == (0, "would drop what 3 calls of 2 episodes hold (0.8 MB); nothing was changed\n")
        assert past.dropped == set()


def test_prune_takes_the_jobs_rule(tmp_path: Path, ajet: Any) -> None:
    write(tmp_path, {"days": 1.0})
    assert json.loads(ajet("prune", tmp_path, "--json")[1])["episodes"] == 2


def test_options_replace_the_jobs_rule(tmp_path: Path, ajet: Any) -> None:
    write(tmp_path, {"days": 1.0})
    assert json.loads(ajet("prune", tmp_path, "--trained-episodes", "0", "--json")[1])["episodes"] == 0


def test_prune_keeps_what_the_jobs_checkpoints_could_redo(folder: Path, ajet: Any) -> None:
    with history(folder / "ledger.sqlite") as past:
        for name in ("one", "two", "three"):
            past.episode(name)
            past.train(name)
    ajet("prune", folder, "--trained-episodes", "0")
    assert dropped(folder) == {"one"}, "checkpoint.keep is 2"


def test_prune_needs_a_rule(folder: Path, ajet: Any) -> None:
    code, err = ajet("prune", folder)
    assert (code, "nothing says what may go" in err) == (1, True)


def test_prune_needs_the_folder_for_itself(folder: Path, ajet: Any) -> None:
    held = DataDir(folder)
    try:
        code, err = ajet("prune", folder, "--days", "1")
    finally:
        held.close()
    assert (code, "in use by another server" in err) == (1, True)
    assert dropped(folder) == set()


def test_prune_without_a_ledger_makes_none(tmp_path: Path, ajet: Any) -> None:
    code, err = ajet("prune", tmp_path, "--days", "1")
    assert (code, "there is no ledger" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []
