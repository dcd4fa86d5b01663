"""Tasks, and small helpers that make streams of them."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ajet_core.errors import RequestError

if TYPE_CHECKING:
    from pydantic import JsonValue

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Task:
    """What one group of episodes is to do.

    Attributes:
        data: any JSON value.
        id: name of the task. By default equal data is one task.
    """

    data: "JsonValue"
    id: str | None = None


TaskLike: TypeAlias = "Task | JsonValue | Mapping[str, JsonValue]"
"""A task, or its data: any JSON value. (To a type checker a `dict[str, int]` is only a `Mapping` of JSON values.)"""


def as_task(item: TaskLike) -> Task:
    """Returns a task as it is, and a JSON value as a task without a name."""
    if isinstance(item, Task):
        return item
    return Task(dict(item) if isinstance(item, Mapping) else item)


def read_jsonl(path: str | Path, *, id_field: str | None = None) -> Iterator[Task]:
    """Yields one task per line of a file of JSON values; empty lines are skipped.

    Args:
        path: the file, UTF-8. It is read as the tasks are asked for.
        id_field: the field that holds each task's name, if the lines are objects with one.

    Raises:
        RequestError: a line is not JSON, or lacks `id_field`; the message has its number.
    """
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, id_field, f"{path}, line {number}")


def shuffle(items: Iterable[_Item], seed: int | str) -> list[_Item]:
    """Returns the items in an order that depends on the seed alone."""
    mixed = list(items)
    random.Random(str(seed)).shuffle(mixed)
    return mixed


def repeat(items: Sequence[_Item], times: int | None = None, *, seed: int | None = None) -> Iterator[_Item]:
    """Yields all the items again and again.

    Args:
        items: a sequence; a generator would be empty the second time.
        times: how often; None is without end.
        seed: shuffle each round, each differently.

    Raises:
        RequestError: there are no items to repeat without end.
    """
    if times is None and not items:
        raise RequestError("items: there are no items to repeat", field="items")
    for number in itertools.count() if times is None else range(times):
        yield from items if seed is None else shuffle(items, f"{seed}/{number}")


def all_distinct(tasks: object) -> bool:
    """Returns whether no two tasks of a sequence or a set are equal, as a server sees it; False for anything else.

    Iterators are left alone, and so are collections that only look like a sequence: to read one may cost much.
    """
    if not isinstance(tasks, Sequence | Set) or not tasks:
        return False
    seen: set[str] = set()
    for item in tasks:
        try:
            name = task_name(as_task(item))
        except (TypeError, ValueError):  # it is no JSON: its opening will say so
            return False
        if name in seen:
            return False
        seen.add(name)
    return True


def task_name(task: Task) -> str:
    """What makes tasks equal: their ids, else their data."""
    return f"id {task.id}" if task.id is not None else json.dumps(task.data, sort_keys=True)


def _parse(line: str, id_field: str | None, place: str) -> Task:
    try:
        data = json.loads(line)
        return Task(data, None if id_field is None else str(data[id_field]))
    except ValueError as error:
        raise RequestError(f"{place}: not JSON: {error}", field="path") from error
    except (KeyError, TypeError):
        raise RequestError(f"{place}: no field {id_field!r}", field="id_field") from None
