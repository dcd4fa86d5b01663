"""JSON taken strictly: no NaN or infinity, no key twice in one object."""

import json
from typing import Any, NoReturn

from ajet_merge.errors import MergeError


def parse(text: str | bytes, where: str) -> Any:
    """The value that a text stands for; bytes are UTF-8.

    Raises:
        MergeError: begins with `where`.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, or an integer too long to read
        raise MergeError(f"{where} is no JSON: {error}") from error


def dump(key: str, value: Any) -> str:
    """The value of a key as one line of JSON, in ASCII.

    Raises:
        MergeError: it is no JSON; names the key.
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise MergeError(f"{key} cannot be written as JSON: {error}") from error


def shown(value: Any) -> str:
    """A value as an error message quotes it, cut short."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in made if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return made
