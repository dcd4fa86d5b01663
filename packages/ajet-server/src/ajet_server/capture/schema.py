"""Tables of the ledger. Migrations are appended to `MIGRATIONS`; a ledger of a newer version is refused."""

import sqlite3

from ajet_core.errors import StorageError

APPLICATION_ID = 0x616A6574
"""Marks the SQLite file as ours: "ajet"."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE episodes (
        id TEXT PRIMARY KEY,
        attempt_id TEXT NOT NULL UNIQUE,
        request_id TEXT NOT NULL UNIQUE,
        group_id TEXT NOT NULL,
        group_named INTEGER NOT NULL,
        task_id TEXT NOT NULL,
        task TEXT NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('train', 'eval')),
        status TEXT NOT NULL CHECK (status IN ('open', 'finished', 'aborted', 'expired')),
        client_id TEXT NOT NULL,
        api_key_hash TEXT NOT NULL UNIQUE,
        control_key_hash TEXT NOT NULL UNIQUE,
        weight_version INTEGER NOT NULL,
        opened_at REAL NOT NULL,
        closed_at REAL,
        reward REAL,
        metrics TEXT NOT NULL DEFAULT '{}',
        reason TEXT,
        stale INTEGER NOT NULL DEFAULT 0,
        batch_id TEXT REFERENCES batches (id)
    ) STRICT;
    CREATE INDEX episodes_by_status ON episodes (status, kind, batch_id);
    CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
    CREATE INDEX episodes_stale ON episodes (id) WHERE stale = 1;
    CREATE TABLE calls (
        id TEXT PRIMARY KEY,
        episode_id TEXT NOT NULL REFERENCES episodes (id),
        seq INTEGER NOT NULL,
        at REAL NOT NULL,
        prompt_ids BLOB NOT NULL,
        completion_ids BLOB NOT NULL,
        logprobs BLOB NOT NULL,
        sampling TEXT NOT NULL,
        temperature REAL NOT NULL,
        weight_version INTEGER NOT NULL,
        finish_reason TEXT NOT NULL,
        cached_tokens INTEGER NOT NULL,
        messages TEXT NOT NULL,
        text TEXT NOT NULL,
        UNIQUE (episode_id, seq)
    ) STRICT;
    CREATE TABLE batches (
        id TEXT PRIMARY KEY,
        step INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('planned', 'done')),
        planned_at REAL NOT NULL,
        done_at REAL,
        report TEXT,
        checkpoint TEXT
    ) STRICT;
    CREATE UNIQUE INDEX batches_by_done_step ON batches (step) WHERE status = 'done';
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at REAL NOT NULL,
        type TEXT NOT NULL,
        data TEXT NOT NULL
    ) STRICT;
    """,
    # Prompts and messages are kept from where they go beyond the parent's: an episode grows with its new tokens.
    """
    ALTER TABLE calls ADD COLUMN parent_id TEXT REFERENCES calls (id);
    ALTER TABLE calls ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE calls ADD COLUMN opening TEXT NOT NULL DEFAULT '';
    ALTER TABLE calls ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE calls ADD COLUMN response TEXT NOT NULL DEFAULT '';
    ALTER TABLE calls ADD COLUMN dialect TEXT NOT NULL DEFAULT 'chat';
    ALTER TABLE calls ADD COLUMN request_digest BLOB NOT NULL DEFAULT x'';
    ALTER TABLE calls ADD COLUMN answer_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE calls ADD COLUMN choice INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE calls ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
    UPDATE calls SET prompt_tokens = length(prompt_ids) / 4, answer_id = id,
        response = json_object('role', 'assistant', 'content', text);
    ALTER TABLE calls DROP COLUMN text;
    """,
    # What calls hold may be dropped, their sizes stay; lists of episodes need no more than indexes.
    """
    ALTER TABLE calls ADD COLUMN completion_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE calls ADD COLUMN created INTEGER NOT NULL DEFAULT 0;
    UPDATE calls SET completion_tokens = length(completion_ids) / 4, created = CAST(at AS INTEGER);
    ALTER TABLE episodes ADD COLUMN dropped_at REAL;
    CREATE INDEX calls_sizes ON calls (episode_id, seq, weight_version, prompt_tokens, completion_tokens);
    CREATE INDEX episodes_by_opening ON episodes (opened_at, id);
    CREATE INDEX episodes_undropped ON episodes (closed_at, status, kind, stale, batch_id, id, dropped_at)
        WHERE dropped_at IS NULL;
    """,
    # An evaluation may name the weights that it is of, and every episode where its task comes from.
    """
    ALTER TABLE episodes ADD COLUMN weights INTEGER;
    ALTER TABLE episodes ADD COLUMN source TEXT;
    """,
    # A call that went on across a change of weights says which of its tokens are of which version; NULL: all of one.
    """
    ALTER TABLE calls ADD COLUMN version_spans TEXT;
    DROP INDEX calls_sizes;
    CREATE INDEX calls_sizes
        ON calls (episode_id, seq, weight_version, prompt_tokens, completion_tokens, version_spans);
    """,
    # Which event came before the newest batch; times cannot tell, for the system's clock may jump.
    """
    INSERT INTO meta (key, value) SELECT 'last_event_before_batch', CAST(max(id) AS TEXT) FROM events
        WHERE at <= (SELECT max(planned_at) FROM batches) HAVING max(id) IS NOT NULL;
    """,
    # What prepared episodes promised to their unions; the deciding one of a union has no `decider`.
    """
    CREATE TABLE promises (
        episode_id TEXT PRIMARY KEY REFERENCES episodes (id),
        union_id TEXT NOT NULL,
        reward REAL NOT NULL,
        metrics TEXT NOT NULL,
        decider TEXT,
        commit_key TEXT NOT NULL,
        abort_key TEXT NOT NULL,
        prepared_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX promises_by_union ON promises (union_id);
    CREATE UNIQUE INDEX promises_that_decide ON promises (union_id) WHERE decider IS NULL;
    """,
    # One model in several roles: each call names its role, each role has a reward. NULL and {}: no roles.
    """
    ALTER TABLE calls ADD COLUMN role TEXT;
    ALTER TABLE episodes ADD COLUMN rewards TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE promises ADD COLUMN rewards TEXT NOT NULL DEFAULT '{}';
    DROP INDEX calls_sizes;
    CREATE INDEX calls_sizes
        ON calls (episode_id, seq, weight_version, prompt_tokens, completion_tokens, version_spans, role);
    """,
)


def refuse_newer(connection: sqlite3.Connection) -> None:
    """Raises `StorageError` if the ledger was written by a newer ajet."""
    version = _version(connection)
    if version > len(MIGRATIONS):
        raise StorageError(
            f"the ledger has schema {version}, this ajet knows up to {len(MIGRATIONS)}; use a newer ajet for it"
        )


def require_current(connection: sqlite3.Connection) -> None:
    """Raises `StorageError` unless this is a ledger of the schema that this ajet reads."""
    if int(connection.execute("PRAGMA application_id").fetchone()[0]) != APPLICATION_ID:
        raise StorageError("this is not a ledger of ajet")
    refuse_newer(connection)
    version = _version(connection)
    if version < len(MIGRATIONS):
        raise StorageError(
            f"the ledger has schema {version}, this ajet reads {len(MIGRATIONS)}; start a server on the data folder "
            "once, which brings it up to date"
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the ledger to the newest schema, one transaction a step."""
    for number in range(_version(connection), len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN; {MIGRATIONS[number]} PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {number + 1}; COMMIT;"
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
