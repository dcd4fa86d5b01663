"""Calls of the ledger as a file of ajet-merge's format: what `ajet merge` and `ajet_merge.read_calls` read.

One call a line or row, its whole prompt, with messages, tools and response where it had any. Advantages are 0 and
weights 1: both depend on the batch that a call is trained in. Rewards are labels of episodes, and go into a file of
their own, one episode a line, joined by `episode_id`; so do the versions of the weights that sampled each call.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ajet_core.errors import ConfigError, NotFoundError, RequestError
from ajet_merge import Call, Context, MergeError
from ajet_merge.records import Record, write_records
from ajet_merge.records.files import write_rows
from ajet_server.capture.browse import EpisodeFilter, EpisodeLine, episode_ids, episode_line, read_episode
from ajet_server.capture.calls import WholeCall, call_roles, call_versions


@dataclass(slots=True)
class Exported:
    """What was written.

    Attributes:
        calls: of the file.
        tokens: prompts and completions of these.
        dropped: episodes that were left out since what their calls held was dropped.
        episode_ids: those that have calls in the file.
    """

    calls: int = 0
    tokens: int = 0
    dropped: int = 0
    episode_ids: list[str] = field(default_factory=list[str])


def export_calls(
    db: sqlite3.Connection,
    wanted: EpisodeFilter,
    file: Path,
    on_episode: Callable[[int], object] = lambda looked_at: None,
) -> Exported:
    """Writes the calls of episodes, one episode in memory at a time; the file is there as a whole or as before.

    Args:
        db: of `reading.look`.
        wanted: which episodes.
        file: its suffix chooses: `.jsonl`, `.jsonl.gz`, `.parquet`.
        on_episode: called with the number of episodes looked at so far.

    Raises:
        NotFoundError: no such episode has a call that is still there.
        RequestError: the file cannot be written, or has another suffix.
        StorageError: a call does not add up.
    """
    done = Exported()
    records = _records(db, wanted, done, on_episode)
    try:
        first = next(records, None)
        if first is None:
            raise NotFoundError(_nothing(done))
        write_records(file, chain([first], records))
    except MergeError as error:
        raise RequestError(str(error)) from error
    return done


def export_episodes(db: sqlite3.Connection, ids: list[str], file: Path) -> None:
    """Writes the rewards and whatever else is known of episodes, one JSON line each.

    `weight_versions` has, for each call by id, (first token, weight version) of each run of tokens of one version;
    `roles` the role of each call that named one.

    Raises:
        ConfigError: the suffix is not `.jsonl` or `.jsonl.gz`.
        RequestError: the file cannot be written.
    """
    check_episodes_file(file)
    try:
        write_rows(file, (_episode_row(db, name) for name in ids), {})
    except MergeError as error:
        raise RequestError(str(error)) from error


def _episode_row(db: sqlite3.Connection, episode_id: str) -> dict[str, Any]:
    of_calls = {"weight_versions": call_versions(db, episode_id), "roles": call_roles(db, episode_id)}
    return asdict(episode_line(db, episode_id)) | of_calls


def check_episodes_file(file: Path) -> None:
    """Raises `ConfigError` unless episodes can be written into such a file."""
    if not file.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"{file}: the suffix of a file of episodes must be .jsonl or .jsonl.gz")


def record_of(call: WholeCall, line: EpisodeLine) -> Record:
    """A call as ajet-merge has it. Raises `MergeError` if it is none, naming the field."""
    record = call.record
    made = Call(
        np.frombuffer(call.prompt_ids, "<i4"),
        np.frombuffer(record.completion_ids, "<i4"),
        np.frombuffer(record.logprobs, "<f4"),
        call_id=record.id,
        attempt_id=line.attempt_id,
        episode_id=line.episode_id,
        group_id=line.group_id,
    )
    return Record(made, _context(call))


def _context(call: WholeCall) -> Context | None:
    if not call.messages:  # a raw prompt
        return None
    return Context(tuple(call.messages), call.response, tuple(json.loads(call.record.tools)))


def _records(
    db: sqlite3.Connection, wanted: EpisodeFilter, done: Exported, on_episode: Callable[[int], object]
) -> Iterator[Record]:
    for looked_at, name in enumerate(episode_ids(db, wanted), 1):
        line, calls = read_episode(db, name)
        done.dropped += line.dropped_at is not None
        if calls:
            done.episode_ids.append(name)
        for call in calls:
            done.calls += 1
            done.tokens += call.record.prompt_tokens + len(call.record.completion_ids) // 4
            yield record_of(call, line)
        on_episode(looked_at)


def _nothing(done: Exported) -> str:
    if done.dropped:
        return f"what the calls held was dropped in all {done.dropped} such episodes (retention); nothing was written"
    return "no such episode has a call; nothing was written"
