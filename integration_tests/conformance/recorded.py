"""What the ledger holds of an episode, read from outside once it is closed."""

import sqlite3
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ajet_merge import Call
from ajet_server.capture.calls import WholeCall, whole_calls


def calls_of(data_dir: Path, episode_id: str) -> list[WholeCall]:
    """The episode's calls in their order."""
    with closing(sqlite3.connect(f"file:{data_dir / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
        ledger.row_factory = sqlite3.Row
        return whole_calls(ledger, episode_id)


def as_merged(call: WholeCall) -> Call:
    """A call as `ajet_merge` takes it."""
    record = call.record
    return Call(
        np.frombuffer(call.prompt_ids, "<i4"),
        np.frombuffer(record.completion_ids, "<i4"),
        np.frombuffer(record.logprobs, "<f4"),
    )


def parents(calls: list[WholeCall]) -> list[int | None]:
    """For each call the place of the one that it goes on from."""
    places = {call.record.id: place for place, call in enumerate(calls)}
    return [None if call.record.parent_id is None else places[call.record.parent_id] for call in calls]


def changes(calls: list[WholeCall], reference: list[WholeCall]) -> set[str]:
    """`role.field` of the last request's messages, and `tools`, wherever they are not those of the reference."""
    found = {
        f"{(mine or theirs)['role']}.{name}"
        for mine, theirs in zip_longest(calls[-1].messages, reference[-1].messages, fillvalue={})
        for name in mine.keys() | theirs.keys()
        if _without_ids(name, mine.get(name)) != _without_ids(name, theirs.get(name))
    }
    return found | ({"tools"} if calls[-1].record.tools != reference[-1].record.tools else set())


def _without_ids(name: str, value: Any) -> Any:
    """Ids of tool calls are new in every episode."""
    if name == "tool_call_id":
        return None
    return [call["function"] for call in value] if name == "tool_calls" and value else value
