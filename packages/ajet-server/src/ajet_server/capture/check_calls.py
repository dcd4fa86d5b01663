"""Calls: the pieces add up, every sampled token has its log-probability, versions never go back."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from ajet_server.capture.problem import Problem
from ajet_server.capture.steps import step_count
from ajet_server.worker import versions

LOGPROB_SLACK = 1e-3
"""Nats above 0 that rounding can explain."""
_JSON = ("messages", "tools", "response", "sampling", "labels")
_CALLS = f"""
    SELECT c.id, c.episode_id, c.parent_id, c.prompt_ids, c.prompt_tokens, c.completion_ids, c.completion_tokens,
        c.logprobs, c.weight_version, c.version_spans, c.temperature, e.dropped_at, e.weights, b.step,
        {" AND ".join(f"json_valid(c.{name})" for name in _JSON)} AS is_json
    FROM calls c JOIN episodes e ON e.id = c.episode_id LEFT JOIN batches b ON b.id = e.batch_id
    ORDER BY c.episode_id, c.seq
"""  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What a call needs to know of its parent: the tokens it hands on, and the newest weights that sampled them."""

    tokens: int
    weight_version: int


def check_calls(db: sqlite3.Connection, on_call: Callable[[], object]) -> Iterator[Problem]:
    """Finds calls that break contract 1. `on_call` is called for every one that was looked at."""
    steps = step_count(db)
    episode, earlier = "", dict[str, _Earlier]()
    for row in db.execute(_CALLS):
        if row["episode_id"] != episode:
            episode, earlier = row["episode_id"], {}
        held = [] if row["dropped_at"] is not None else _contents(row)
        newest, flaw = _newest(row)
        version = [flaw] if flaw else _versions(row, newest, earlier, steps)
        for message in [*_sizes(row, earlier), *held, *_dropped(row), *version]:
            yield Problem("call", row["id"], f"of episode {episode} {message}")
        earlier[row["id"]] = _Earlier(row["prompt_tokens"] + row["completion_tokens"], newest)
        on_call()


def _sizes(row: sqlite3.Row, earlier: dict[str, _Earlier]) -> Iterator[str]:
    """Contract 1: a prompt is the parent's prompt and completion, and what is kept beyond it."""
    known = 0
    if row["parent_id"] is not None:
        parent = earlier.get(row["parent_id"])
        if parent is None:
            yield f"goes on from {row['parent_id']}, which is no earlier call of this episode"
            return
        known = parent.tokens
    if row["dropped_at"] is not None:
        if row["prompt_tokens"] < known:
            yield f"has a prompt of {row['prompt_tokens']} tokens, fewer than the {known} that it goes on from"
        return
    made = known + len(row["prompt_ids"]) // 4
    if made != row["prompt_tokens"] or len(row["prompt_ids"]) % 4:
        yield f"has a prompt of {row['prompt_tokens']} tokens, but its pieces make {made}"


def _contents(row: sqlite3.Row) -> Iterator[str]:
    sampled = len(row["completion_ids"])
    if sampled % 4 or sampled // 4 != row["completion_tokens"]:
        yield f"sampled {row['completion_tokens']} tokens, but {sampled} bytes of ids are kept"
        return
    if len(row["logprobs"]) != sampled:
        yield f"sampled {sampled // 4} tokens, but {len(row['logprobs'])} bytes of log-probabilities are kept"
        return
    logprobs = np.frombuffer(row["logprobs"], "<f4")
    if not np.isfinite(logprobs).all() or logprobs.max(initial=0.0) > LOGPROB_SLACK:
        yield "has log-probabilities that are not finite, or above 0"
    for name in ("prompt_ids", "completion_ids"):
        whole = row[name][: len(row[name]) // 4 * 4]  # odd bytes are told elsewhere
        if np.frombuffer(whole, "<i4").min(initial=0) < 0:
            yield f"has {name} below 0"


def _dropped(row: sqlite3.Row) -> Iterator[str]:
    if row["dropped_at"] is not None and (row["prompt_ids"] or row["completion_ids"] or row["logprobs"]):
        yield "still holds tokens, though they are said to be dropped"
    if not row["is_json"]:
        yield f"has {', '.join(_JSON)}, of which one is no JSON"


def _newest(row: sqlite3.Row) -> tuple[int, str | None]:
    """Returns the newest version of a call, and what is wrong with what is told of its versions."""
    oldest, text = row["weight_version"], row["version_spans"]
    try:
        spans = versions.of_text(text)
    except msgspec.MsgspecError:
        return oldest, f"has version spans {text!r}, which are no list of (first token, weight version)"
    return versions.newest(oldest, spans), versions.flaw(oldest, spans, row["completion_tokens"])


def _versions(row: sqlite3.Row, newest: int, earlier: dict[str, _Earlier], steps: int) -> Iterator[str]:
    """A call comes after its parent, and a batch is made of tokens of weights before its step."""
    version, parent = row["weight_version"], earlier.get(row["parent_id"])
    if not 0 <= version <= newest <= steps:
        yield f"was sampled with weights {newest}, which none of the {steps} steps has made"
    if parent is not None and version < parent.weight_version:
        yield f"was sampled with weights {version}, before those of its parent, {parent.weight_version}"
    if row["weights"] is not None and (version, newest) != (row["weights"], row["weights"]):
        yield f"was sampled with weights {version} to {newest}, but its episode is of weights {row['weights']}"
    if row["step"] is not None and newest >= row["step"]:
        yield f"was sampled with weights {newest}, but trained in step {row['step']}"
