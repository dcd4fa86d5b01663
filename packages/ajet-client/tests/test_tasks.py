import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_client import Task, read_jsonl, repeat, shuffle
from ajet_client.tasks import all_distinct, as_task
from ajet_core.errors import RequestError


def test_a_json_value_is_a_task_without_a_name() -> None:
    assert as_task({"q": 1}) == Task({"q": 1}, id=None)
    assert as_task(None) == Task(None)
    named = Task("q", id="n")
    assert as_task(named) is named


def test_lines_are_tasks(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": 1, "q": "é"}\n\n  \n{"id": "b"}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [Task({"id": 1, "q": "é"}), Task({"id": "b"})]
    assert [task.id for task in read_jsonl(str(path), id_field="id")] == ["1", "b"]


def test_a_file_is_read_as_its_tasks_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("1\nbroken\n")
    tasks = read_jsonl(path)
    assert next(tasks) == Task(1)
    with pytest.raises(RequestError, match=r"tasks.jsonl, line 2: not JSON"):
        next(tasks)


@pytest.mark.parametrize("line", ["{}", "3", "[]"])
def test_a_missing_name_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(line)
    with pytest.raises(RequestError, match="line 1: no field 'id'"):
        next(read_jsonl(path, id_field="id"))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(read_jsonl(tmp_path / "none"))


@given(items=st.lists(st.integers()), seed=st.integers())
def test_a_shuffle_keeps_the_items_and_depends_on_the_seed_alone(items: list[int], seed: int) -> None:
    assert sorted(shuffle(items, seed)) == sorted(items)
    assert shuffle(items, seed) == shuffle(iter(items), seed)


def test_a_shuffle_is_the_same_in_every_version() -> None:
    assert shuffle(range(8), 0) == [3, 4, 6, 1, 7, 2, 0, 5]


def test_repeat() -> None:
    assert list(repeat("ab", 2)) == ["a", "b", "a", "b"]
    assert list(itertools.islice(repeat("ab"), 5)) == ["a", "b", "a", "b", "a"]
    assert list(repeat("", 3)) == []


def test_each_round_is_shuffled_differently() -> None:
    items = list(range(20))
    stream = list(repeat(items, 2, seed=1))
    first, second = stream[:20], stream[20:]
    assert sorted(first) == sorted(second) == items
    assert first != second
    assert stream == list(repeat(items, 2, seed=1))


def test_nothing_cannot_be_repeated_without_end() -> None:
    with pytest.raises(RequestError, match="no items"):
        next(repeat(""))


@pytest.mark.parametrize(
    ("tasks", "distinct"),
    [
        ([1, 2], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([Task(1), 1], False),
        ([Task(1, "x"), Task(1)], True),
        ({1, 2}, True),
        ([], False),
        (iter([1, 2]), False),
        ({1: 2}, False),
        ([object(), object()], False),
    ],
)
def test_all_distinct(tasks: object, distinct: bool) -> None:
    assert all_distinct(tasks) is distinct
