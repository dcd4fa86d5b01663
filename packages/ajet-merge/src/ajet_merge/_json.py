"""Values that JSON can hold: checked, copied, compared and refused."""

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from json.encoder import encode_basestring_ascii as _quoted
from reprlib import Repr
from typing import Any, NoReturn

from .errors import MergeError

MAX_DEPTH = 100
"""So many levels of lists and mappings in one message are taken for an accident."""
MAX_BITS = 14_000
"""Python writes no longer integer in decimal."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def plain_value(value: Any, name: str, depth: int = 0) -> Any:
    """A copy in plain dicts and lists. Refuses with a `MergeError` what JSON cannot hold; `name` says where it is."""
    if value is None or isinstance(value, str | bool | int | float):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            refuse(name, hex(value), "must be what JSON can hold")
        return value
    if depth == MAX_DEPTH:
        refuse(name, value, f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return [plain_value(item, f"{name}[{index}]", depth + 1) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        refuse(name, value, "must be what JSON can hold")
    for key in value:
        if not isinstance(key, str):
            refuse(name, key, "keys must be strings")
    return {key: plain_value(item, f"{name}.{key}", depth + 1) for key, item in value.items()}


def digested(value: Any) -> Any:
    """A plain value with base64 `data:` URLs replaced by the digest of their bytes."""
    if isinstance(value, dict):
        return {key: digested(item) for key, item in value.items()}
    if isinstance(value, list):
        return [digested(item) for item in value]
    return _digest(value) if isinstance(value, str) and value.startswith("data:") else value


def _digest(url: str) -> Any:
    head, _, data = url.partition(",")
    if not head.endswith(";base64"):
        return url
    try:
        return ["sha256", sha256(b64decode(data, validate=True)).hexdigest()]
    except ValueError:  # no base64: the text itself is compared
        return url


json_text = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Gives a plain value as JSON with sorted keys."""


def json_of_texts(first: str, text: str, second: str, other: str) -> str:
    """What `json_text` gives for a mapping of two keys in their order to texts, in a third of the time."""
    return f'{{"{first}":{_quoted(text)},"{second}":{_quoted(other)}}}'


def numbers_of(value: Any) -> Any:
    """What a plain value holds of numbers and booleans, by key or index; None if nothing."""
    if not isinstance(value, dict | list):
        return None if isinstance(value, str) else value
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: found for key, item in items if (found := numbers_of(item)) is not None} or None


def same_types(numbers: dict[Any, Any], other: Any) -> bool:
    """Whether the numbers of one value and of another, equal one are the same in JSON too."""
    for key, number in numbers.items():  # a plain loop: this is run for every message of every history
        given = other[key]
        if type(number) is dict:
            if not same_types(number, given):
                return False
        elif type(number) is not type(given) or (not number and repr(number) != repr(given)):  # 0.0 == -0.0
            return False
    return True


def is_empty(value: Any) -> bool:
    """Whether it holds nothing; 0 and False are something."""
    return value is None or (isinstance(value, str | list | tuple | Mapping) and not value)


def mappings(values: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """The values as a tuple. Refuses with a `MergeError` what is no list of mappings."""
    if not isinstance(values, list | tuple):
        refuse(name, values, "must be a list of mappings")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            refuse(f"{name}[{index}]", value, "must be a mapping")
    return tuple(values)


def refuse(name: str, value: object, rule: str) -> NoReturn:
    """Raise a `MergeError` that names the value and what would be right."""
    raise MergeError(f"{name} = {_SHORT.repr(value)}: {rule}")
