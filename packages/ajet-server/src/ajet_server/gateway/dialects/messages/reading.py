"""Parts of a body that are read by hand: a conversation comes whole with every call, and its mistakes need a path."""

import json
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import short

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def wrong(at: str, value: object, reason: str) -> RequestError:
    """The refusal of a value. `at` is its path, as in `messages.0.content`."""
    return RequestError(f"{at}: got {short(value)}; {reason}", field=at)


def fields_at(raw: object, at: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object's fields without those that are `null`. Raises `RequestError` if one is missing or unknown."""
    if not isinstance(raw, dict):
        raise wrong(at, raw, "an object is needed")
    present = {str(name): value for name, value in raw.items() if value is not None}
    for name in needed:
        if name not in present:
            raise RequestError(f"{at}.{name}: required, but not given", field=f"{at}.{name}")
    for name in present:
        if name not in needed and name not in optional:
            raise RequestError(f"{at}.{name}: unknown field", field=f"{at}.{name}")
    return present


def list_at(value: object, at: str) -> list[Any]:
    """A list of blocks. Raises `RequestError`."""
    if not isinstance(value, list):
        raise wrong(at, value, "a string or a list of blocks is needed")
    return value


def flag_at(value: object, at: str) -> bool:
    """A boolean. Raises `RequestError`."""
    if not isinstance(value, bool):
        raise wrong(at, value, "true or false is needed")
    return value


def json_text_at(value: object, at: str) -> str:
    """An object as JSON text, spaced as models and chat templates write it. Raises `RequestError`."""
    if not isinstance(value, dict):
        raise wrong(at, value, "an object is needed")
    try:
        text = _ENCODER.encode(value)
        text.encode()
    except UnicodeEncodeError:
        raise wrong(at, value, "half of a surrogate pair is no character") from None
    except (ValueError, RecursionError) as error:
        raise wrong(at, value, f"it is not JSON: {error}") from None
    return text
