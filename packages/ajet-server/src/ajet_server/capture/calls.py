"""Captured calls in the ledger: what the engine was given and what it sampled, by id (contract 1).

A call that goes on from an earlier one of its episode keeps only what it adds to it: prompt ids beyond the parent's
prompt and completion, messages beyond the parent's and its answer. So an episode of n turns takes room for its tokens
once, and not n times. Reading puts the pieces together again.
"""

import contextlib
import json
import sqlite3
import time
from functools import cache
from typing import Any

import msgspec

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import EpisodeClosedError, StorageError
from ajet_server.capture.promises import is_prepared
from ajet_server.worker import versions
from ajet_server.worker.protocol import CallRow


class CallRecord(msgspec.Struct, frozen=True):
    """One captured call, as it is stored.

    Attributes:
        id: unique.
        episode_id: its episode.
        seq: its place among the episode's calls.
        created: when it was asked for, in seconds since the epoch: the answer says so.
        parent_id: the call that it goes on from, recorded earlier in the same episode; None without one.
        prompt_ids: little-endian int32, those beyond the parent's prompt and completion; all without a parent.
        prompt_tokens: of the whole prompt.
        completion_ids: little-endian int32, every sampled id.
        logprobs: little-endian float32, one for each, of the distribution that it was sampled from.
        sampling: JSON of the engine's sampling parameters.
        temperature: it was sampled with.
        weight_version: the oldest among its tokens.
        finish_reason: why sampling ended: `stop` or `length`.
        cached_tokens: prompt ids that the engine had computed before.
        messages: JSON, those beyond the parent's messages and its response; all without a parent. A raw prompt that no
            template was put around has none.
        tools: JSON, as given to the template.
        opening: text that was put before what is sampled, to make the model call a tool; its ids end the prompt.
        response: JSON of the message that the completion was read as.
        dialect: in which the agent asked.
        request_digest: of the body, to recognise a retry.
        answer_id: id of the answer that it is a choice of.
        choice: which choice.
        labels: JSON of what the caller wants recorded with it.
        version_spans: JSON of (first token, weight version) of each run of tokens of one version; None where all are of
            one.
        role: in which the model made it; None if the caller named none.
    """

    id: str
    episode_id: str
    seq: int
    created: int
    parent_id: str | None
    prompt_ids: bytes
    prompt_tokens: int
    completion_ids: bytes
    logprobs: bytes
    sampling: str
    temperature: float
    weight_version: int
    finish_reason: str
    cached_tokens: int
    messages: str
    tools: str
    opening: str
    response: str
    dialect: str
    request_digest: bytes
    answer_id: str
    choice: int
    labels: str
    version_spans: str | None = None
    role: str | None = None


class WholeCall(msgspec.Struct, frozen=True):
    """A call put together again.

    Attributes:
        record: as it is stored.
        prompt_ids: little-endian int32, the whole prompt.
        messages: the whole request's.
    """

    record: CallRecord
    prompt_ids: bytes
    messages: list[dict[str, Any]]

    @property
    def response(self) -> dict[str, Any]:
        """The message that the completion was read as."""
        return json.loads(self.record.response)


_COLUMNS = CallRecord.__struct_fields__
_NAMES = ", ".join(("at", "completion_tokens", *_COLUMNS))
_ROW = f"({', '.join('?' * (len(_COLUMNS) + 2))})"
_INSERT = f"INSERT INTO calls ({_NAMES}) SELECT * FROM (VALUES {{rows}})"  # noqa: S608 - our own names
_IF_ALL_OPEN = """
    WHERE NOT EXISTS (
        SELECT 1 FROM json_each(?) AS named
        WHERE NOT EXISTS (SELECT 1 FROM episodes WHERE id = named.value AND status = 'open')
            OR EXISTS (SELECT 1 FROM promises WHERE episode_id = named.value)
    )
"""
MOST_AT_ONCE = 32
"""Calls of one SQL statement. SQLite keeps the compiled form of each number."""
_MUCH = 1 << 20
"""Bytes that are not left with a compiled statement."""
# A row that is made shorter where it lies leaves a hole in its page, which SQLite keeps. So it moves to the end.
_DROP = """
    UPDATE calls SET rowid = (SELECT max(rowid) + 1 FROM calls), prompt_ids = x'', completion_ids = x'', logprobs = x'',
        messages = '[]', tools = '[]', opening = '', response = '{}'
    WHERE id = ?
"""


def insert_calls(db: sqlite3.Connection, calls: list[CallRecord]) -> None:
    """Records calls, all or none; `MOST_AT_ONCE` by each SQL statement, so that more of them need a transaction.

    Raises:
        EpisodeClosedError: an episode closed meanwhile, or was prepared; late results are fenced off.
    """
    now = time.time()
    for start in range(0, len(calls), MOST_AT_ONCE):
        _insert(db, calls[start : start + MOST_AT_ONCE], now)


def _insert(db: sqlite3.Connection, calls: list[CallRecord], now: float) -> None:
    episodes = list(dict.fromkeys(call.episode_id for call in calls))
    values: list[Any] = []
    for call in calls:
        values += now, len(call.completion_ids) // 4, *msgspec.structs.astuple(call)
    values.append(json.dumps(episodes))
    recorded = db.execute(_statement(len(calls)), values).rowcount
    if sum(len(value) for value in values if isinstance(value, bytes | str)) > _MUCH:
        _forget_values(db, len(calls))
    if recorded != len(calls):
        statuses = [(name, _status(db, name)) for name in episodes]
        name, status = next(one for one in statuses if one[1] != EpisodeStatus.OPEN)
        raise EpisodeClosedError(f"episode {name} is {status}; the call was not recorded")


def _forget_values(db: sqlite3.Connection, calls: int) -> None:
    """Frees what a compiled statement was given, which SQLite keeps until it is given something else.

    The last value is none that SQLite takes, so that the statement does not run.
    """
    values = [None] * (calls * (len(_COLUMNS) + 2))
    with contextlib.suppress(sqlite3.Error):
        db.execute(_statement(calls), [*values, object()])


@cache
def _statement(calls: int) -> str:
    return _INSERT.format(rows=", ".join([_ROW] * calls)) + _IF_ALL_OPEN


def _status(db: sqlite3.Connection, episode_id: str) -> str:
    if is_prepared(db, episode_id):
        return "prepared for a union"
    row = db.execute("SELECT status FROM episodes WHERE id = ?", (episode_id,)).fetchone()
    return row["status"] if row else "unknown"


def drop_contents(db: sqlite3.Connection, episode_id: str) -> None:
    """Drops what an episode's calls hold: ids, log-probabilities, messages. Rows stay, with sizes and versions."""
    names = db.execute("SELECT id FROM calls WHERE episode_id = ?", (episode_id,)).fetchall()
    db.executemany(_DROP, [(row["id"],) for row in names])


def whole_calls(db: sqlite3.Connection, episode_id: str) -> list[WholeCall]:
    """Returns an episode's calls in the order they were made, put together again.

    Raises:
        StorageError: a parent is missing, or the pieces do not add up.
    """
    rows = db.execute("SELECT * FROM calls WHERE episode_id = ? ORDER BY seq", (episode_id,)).fetchall()
    made: dict[str, WholeCall] = {}
    for row in rows:
        record = CallRecord(**{name: row[name] for name in _COLUMNS})
        made[record.id] = _whole(record, made)
    return list(made.values())


def _whole(record: CallRecord, earlier: dict[str, WholeCall]) -> WholeCall:
    prompt, messages = record.prompt_ids, json.loads(record.messages)
    if record.parent_id is not None:
        parent = earlier.get(record.parent_id)
        if parent is None:
            raise StorageError(f"call {record.id}: its parent {record.parent_id} is not in the ledger")
        prompt = parent.prompt_ids + parent.record.completion_ids + prompt
        messages = [*parent.messages, parent.response, *messages]
    if len(prompt) != 4 * record.prompt_tokens:
        raise StorageError(
            f"call {record.id}: its prompt has {len(prompt) // 4} tokens, {record.prompt_tokens} were recorded"
        )
    return WholeCall(record, prompt, messages)


def call_rows(db: sqlite3.Connection, episode_id: str) -> list[CallRow]:
    """Returns an episode's calls as a batch takes them. Raises `StorageError`, see `whole_calls`."""
    return [
        CallRow(
            call_id=call.record.id,
            episode_id=episode_id,
            prompt_ids=call.prompt_ids,
            completion_ids=call.record.completion_ids,
            logprobs=call.record.logprobs,
            temperature=call.record.temperature,
            weight_version=call.record.weight_version,
            version_spans=versions.of_text(call.record.version_spans),
            role=call.record.role,
        )
        for call in whole_calls(db, episode_id)
    ]


def call_versions(db: sqlite3.Connection, episode_id: str) -> dict[str, versions.Spans]:
    """Returns (first token, weight version) of each run of tokens of one version, for an episode's calls by id."""
    query = "SELECT id, weight_version, version_spans FROM calls WHERE episode_id = ? ORDER BY seq"
    rows = db.execute(query, (episode_id,)).fetchall()
    return {row["id"]: versions.whole(row["weight_version"], versions.of_text(row["version_spans"])) for row in rows}


def call_roles(db: sqlite3.Connection, episode_id: str) -> dict[str, str]:
    """Returns the roles of an episode's calls by id; those that named none are left out."""
    query = "SELECT id, role FROM calls WHERE episode_id = ? AND role IS NOT NULL ORDER BY seq"
    return {row["id"]: row["role"] for row in db.execute(query, (episode_id,)).fetchall()}


def answers_to(db: sqlite3.Connection, episode_id: str, request_digest: bytes) -> list[str]:
    """Returns the ids of the episode's answers to requests of this digest, oldest first."""
    rows = db.execute(
        "SELECT answer_id FROM calls WHERE episode_id = ? AND request_digest = ? AND choice = 0 ORDER BY seq",
        (episode_id, request_digest),
    )
    return [row["answer_id"] for row in rows]
