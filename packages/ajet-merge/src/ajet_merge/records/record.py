"""`Record`, a call with its context, and how it becomes a flat row of named values and is made of one."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from ajet_merge._arrays import AnyArray
from ajet_merge._fields import Field
from ajet_merge.call import Call
from ajet_merge.errors import CallError, MergeError
from ajet_merge.messages import Context, check_ends

from .strictjson import shown

Row: TypeAlias = dict[str, Any]
"""Values by key. Arrays of numbers are numpy arrays (or lists, as JSON has them); absent and None mean the default."""

NAME_KEYS = ("call_id", "attempt_id", "episode_id", "group_id", "compat_key")
DELTA_KEYS = ("extends", "shared")
JSON_KEYS = ("messages", "response", "tools")
CONTEXT_KEYS = tuple(field.name for field in fields(Context))
KEYS = (*(field.name for field in fields(Call)), *CONTEXT_KEYS, *DELTA_KEYS)

_DEFAULTS = {"mask": np.uint8(1), "advantage": np.float32(0), "weight": np.float32(1)}
_ITEMS: dict[str, tuple[str, frozenset[type]]] = {
    "prompt_ids": ("integer token ids", frozenset({int})),
    "completion_ids": ("integer token ids", frozenset({int})),
    "logprobs": ("numbers", frozenset({int, float})),
    "mask": ("0 and 1, or of booleans", frozenset({int, bool})),
    "advantage": ("numbers, or one number", frozenset({int, float})),
    "weight": ("numbers, or one number", frozenset({int, float})),
    "message_ends": ("integers", frozenset({int})),
}
ONE_FOR_ALL = ("advantage", "weight")
"""Keys that may hold one number for all completion tokens."""


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """What a file holds for one call.

    Attributes:
        call: the call.
        context: what it looked like before it was tokens, if the file says so.
    """

    call: Call
    context: Context | None = None


def to_row(record: Record) -> Row:
    """The row of a record, without what has its default value anyway."""
    call, context = record.call, record.context
    row: Row = {name: value for name in NAME_KEYS if (value := getattr(call, name))}
    if not call.context_exact:
        row["context_exact"] = False
    row |= {"prompt_ids": call.prompt_ids, "completion_ids": call.completion_ids, "logprobs": call.logprobs}
    row |= {name: value for name, usual in _DEFAULTS.items() if not _all_equal(value := getattr(call, name), usual)}
    if context is None:
        return row
    row["messages"] = [dict(message) for message in context.messages]
    if context.response is not None:
        row["response"] = dict(context.response)
    if context.tools:
        row["tools"] = [dict(tool) for tool in context.tools]
    if context.message_ends is not None:
        row["message_ends"] = context.message_ends
    return row


def _all_equal(values: AnyArray, usual: np.generic) -> bool:
    """By bits: -0.0 is not 0.0, or a round trip would not be exact."""
    return values.tobytes() == usual.tobytes() * values.size


class RecordReader:
    """Makes records of rows, one after another, and keeps them: a row may extend an earlier one.

    Attributes:
        records: the records so far.
    """

    def __init__(self, ignore: Collection[str]) -> None:
        if isinstance(ignore, str):
            raise MergeError(f"ignore={ignore!r}: give a list of keys, for example [{ignore!r}]")
        if known := sorted(set(ignore) & set(KEYS)):
            raise MergeError(f"ignore={known}: these keys have a meaning here and cannot be ignored")
        self._ignore = frozenset(ignore)
        self.records: list[Record] = []

    def add(self, row: Row, where: str) -> None:
        """Add the record of one row.

        Raises:
            MergeError: begins with `where`, then names the call, the key, the value and what would be right.
        """
        call_id = str(row.get("call_id") or "")
        try:
            given = self._check(row, call_id)
            self._restore_prompt(given, call_id)
            context = _context(given, call_id)
            call = Call(**given)
            if context:
                check_ends(context, call.prompt_ids.size, f"call {call_id!r}")
        except MergeError as error:
            raise MergeError(f"{where}: {error}") from error
        self.records.append(Record(call, context))

    def _check(self, row: Row, call_id: str) -> Row:
        """The row without what is ignored or null, its values of the right types."""
        if unknown := find_unknown(row, self._ignore):
            raise CallError(call_id, *unknown)
        given = {key: value for key, value in row.items() if value is not None and key not in self._ignore}
        for key in _ITEMS:
            if key in given:
                _check_items(call_id, key, given[key])
        for key in ("prompt_ids", "completion_ids"):
            if key not in given:
                raise CallError(call_id, key, " is missing: give a list of token ids, [] if there are none")
        given.setdefault("logprobs", None if len(given["completion_ids"]) else [])
        return given

    def _restore_prompt(self, given: Row, call_id: str) -> None:
        """Put back in front of the prompt what the row shares with an earlier one."""
        extends, shared = (whole(given.pop(key, None)) for key in DELTA_KEYS)
        if extends is None and shared is None:
            return
        if type(extends) is not int or not 0 <= extends < len(self.records):
            last = len(self.records) - 1
            right = f"must be the index of an earlier call, 0..{last}" if last >= 0 else "the first call extends none"
            raise CallError(call_id, "extends", f" = {shown(extends)}: {right}")
        earlier = self.records[extends].call
        if type(shared) is not int or not 1 <= shared <= len(earlier):
            right = f"must be a number of tokens of call {extends}, 1..{len(earlier)}"
            raise CallError(call_id, "shared", f" = {shown(shared)}: {right}")
        rest = Field(call_id, "prompt_ids").token_ids(given["prompt_ids"])
        more = max(shared - earlier.prompt_ids.size, 0)
        given["prompt_ids"] = np.concatenate([earlier.prompt_ids[:shared], earlier.completion_ids[:more], rest])


def whole(value: Any) -> Any:
    """The integer that a float was before pandas stored it beside missing values, which become NaN; None for these.

    Whatever else it is stays as it is, floats too that could have been rounded.
    """
    if type(value) is not float:
        return value
    if isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def find_unknown(keys: Iterable[str], ignore: Collection[str]) -> tuple[str, str] | None:
    """The first key that means nothing, and the words that say so; None if there is none."""
    unknown = [key for key in keys if key not in KEYS and key not in ignore]
    if not unknown:
        return None
    return unknown[0], f" is no key of a call ({', '.join(KEYS)}); ignore={unknown} leaves it out"


def _context(given: Row, call_id: str) -> Context | None:
    found = {key: given.pop(key) for key in CONTEXT_KEYS if key in given}
    if found and "messages" not in found:
        raise CallError(call_id, "messages", f" is missing, though {next(iter(found))} is there: give the request's")
    return Context(**found) if found else None


def _check_items(call_id: str, key: str, value: Any) -> None:
    """Lists as JSON has them: `Call` would take a boolean for a number. Arrays carry a dtype, which `Call` checks."""
    what, types = _ITEMS[key]
    if isinstance(value, np.ndarray) or (key in ONE_FOR_ALL and type(value) in types):
        return
    if not isinstance(value, list):
        raise CallError(call_id, key, f" = {shown(value)}: must be a list of {what}")
    if set(map(type, value)) - types:
        at = next(index for index, item in enumerate(value) if type(item) not in types)
        raise CallError(call_id, key, f"[{at}] = {shown(value[at])}: must be a list of {what}")
