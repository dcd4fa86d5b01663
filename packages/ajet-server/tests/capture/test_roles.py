"""Roles in the ledger: of calls, of rewards, and in ledgers that were made before there were any."""

import sqlite3
from pathlib import Path

import pytest
from ledger_helpers import History

from ajet_server.capture import records
from ajet_server.capture.check import check
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.schema import APPLICATION_ID, MIGRATIONS

REWARDS = {"white": 1.0, "black": -1.0}


def played(past: History, name: str, *roles: str | None) -> str:
    past.open(name)
    for seq, role in enumerate(roles):
        past.call(name, seq, role=role)
    return name


def problems(past: History) -> list[str]:
    return past.ledger.read_now(lambda db: [problem.message for problem in check(db)])


def test_they_are_read_back(past: History) -> None:
    past.close(played(past, "a", "white", "black", "white"), reward=0.0, rewards=REWARDS)
    past.close(played(past, "b", None))
    (first, second) = past.ledger.read_now(records.pool_rows)
    assert (first.rewards, first.earned) == (REWARDS, REWARDS)
    assert (second.rewards, second.earned) == ({}, {None: 1.0})
    view = past.ledger.read_now(lambda db: records.episode_view(db, "a"))
    assert view is not None
    assert (view.reward, view.rewards) == (0.0, REWARDS)
    batch = past.plan("a", "b")
    rows = past.ledger.read_now(lambda db: records.batch_episodes(db, batch))
    assert [row.rewards for row in rows] == [REWARDS, {}]
    assert [[call.role for call in row.calls] for row in rows] == [["white", "black", "white"], [None]]
    assert problems(past) == []


@pytest.mark.parametrize("roles", [(), (None,), ("white", "white", "black")])
def test_an_open_episode_knows_its_roles_after_a_restart(past: History, roles: tuple[str | None, ...]) -> None:
    played(past, "a", *roles)
    ((_, so_far),) = past.ledger.read_now(records.open_episodes)
    assert so_far.roles == set(roles)


@pytest.mark.parametrize(
    ("roles", "change", "problem"),
    [
        (("white", "black"), "rewards = '{\"white\": 1}'", "has rewards for other roles than those that made calls"),
        (("white",), 'rewards = \'{"white": 1, "red": 0}\'', "has rewards for other roles than those that made calls"),
        (("white",), "rewards = '{}'", "has rewards for other roles than those that made calls"),
        ((None,), "rewards = '{\"white\": 1}'", "has rewards for other roles than those that made calls"),
        (("white", "black"), "status = 'aborted', reward = NULL", "has rewards of roles, but is not finished"),
    ],
)
def test_what_cannot_be_is_found(past: History, roles: tuple[str | None, ...], change: str, problem: str) -> None:
    past.close(played(past, "a", *roles), rewards={role: 1.0 for role in roles if role})
    assert problems(past) == []
    past.sql(f"UPDATE episodes SET {change}")
    assert problem in problems(past)


def test_rewards_that_are_no_json_are_found(past: History) -> None:
    past.close(played(past, "a", "white"), rewards={"white": 1.0})
    past.sql("UPDATE episodes SET rewards = '{'")
    assert "has rewards that are no JSON" in problems(past)


def test_a_ledger_from_before_has_no_roles(tmp_path: Path) -> None:
    file = tmp_path / "l"
    before = next(number for number, text in enumerate(MIGRATIONS) if "ADD COLUMN role" in text)
    with sqlite3.connect(file) as old:
        for text in MIGRATIONS[:before]:
            old.executescript(text)
        old.executescript(f"""
            INSERT INTO episodes (id, attempt_id, request_id, group_id, group_named, task_id, task, kind, status,
                client_id, api_key_hash, control_key_hash, weight_version, opened_at, closed_at, reward)
                VALUES ('e', 'a', 'r', 'g', 0, 't', '1', 'train', 'finished', 'c', 'x', 'y', 0, 1, 2, 0.5);
            INSERT INTO calls (id, episode_id, seq, at, prompt_ids, prompt_tokens, completion_ids, completion_tokens,
                logprobs, sampling, temperature, weight_version, finish_reason, cached_tokens, messages, response)
                VALUES ('c', 'e', 0, 1, x'01000000', 1, x'02000000', 1, x'00000000', '{{}}', 1, 0, 'stop', 0,
                '[]', '{{}}');
            PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {before};""")
    old.close()
    with Ledger(file) as ledger:
        (row,) = ledger.read_now(records.pool_rows)
        assert (row.reward, row.rewards) == (0.5, {})
        assert ledger.read_now(lambda db: [str(problem) for problem in check(db)]) == []
        (version,) = ledger.read_now(lambda db: db.execute("PRAGMA user_version").fetchone())
        assert version == len(MIGRATIONS)
