"""What the dialects' bodies have in common: how they are checked, and how a mistake is told."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import AjetError, RequestError

M = TypeVar("M", bound=BaseModel)
_SHORT = 120


class Body(BaseModel):
    """A part of a body: every field is known by name, everything else is refused by name."""

    model_config = ConfigDict(extra="forbid")


def _characters(text: str) -> str:
    r"""Refuses half of a surrogate pair, which JSON can name ("\ud800"): neither tokenizer nor ledger takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
    return text


Text = Annotated[str, AfterValidator(_characters)]


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """Refuses what `Text` refuses, and numbers that are none, at any depth."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


Json = Annotated[dict[str, Any], AfterValidator(_json)]
"""Any JSON object, such as a schema."""

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
"""Every vendor allows less; these characters can stand in every syntax of tool calls without being escaped."""


def _schema(*needed: str, **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(needed)}


_BLOCK = _schema("type", "text", type={"const": "text"}, text={"type": "string"})
TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _BLOCK, "minItems": 1}]}
"""Text, whole or in blocks, as documentation for people: of what is read by hand, a part is told there."""


def messages_schema(*roles: str) -> dict[str, Any]:
    """Messages of these roles, as documentation for people."""
    message = _schema("role", "content", role={"enum": list(roles)}, content=TEXT_SCHEMA)
    return {"type": "array", "items": message, "minItems": 1}


def text_at(value: object, path: str) -> str:
    """What `Text` checks, by hand: for texts that come by the hundred. Raises `RequestError`."""
    if not isinstance(value, str):
        raise RequestError(f"{path}: got {short(value)}; a string is needed", field=path)
    try:
        return value if value.isascii() else _characters(value)
    except ValueError as error:
        raise RequestError(f"{path}: got {short(value)}; {error}", field=path) from None


def as_object(raw: object) -> dict[str, Any]:
    """The body as a JSON object without the fields that are `null`, which ask for nothing. Raises `RequestError`."""
    if not isinstance(raw, dict):
        raise RequestError(f"the body must be a JSON object, got {type(raw).__name__}")
    return {str(name): value for name, value in raw.items() if value is not None}


def drop_off(present: Mapping[str, Any], off: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Leaves out fields that are known and not served, if their value asks for nothing.

    Args:
        present: the body.
        off: for each such field the values that ask for nothing; SDKs and frameworks like to send them.

    Raises:
        RequestError: one asks for something; names it.
    """
    if present.keys().isdisjoint(off):
        return dict(present)
    for name, values in off.items():
        value = present.get(name)
        if value is not None and not any(type(value) is type(item) and value == item for item in values):
            advice = f"leave it out or send {values[0]!r}" if values else "leave it out"
            raise RequestError(f"{name}: {short(value)} is not served; {advice}", field=name)
    return {name: value for name, value in present.items() if name not in off}


def validate(model: type[M], raw: dict[str, Any]) -> M:
    """Reads a body. Raises `RequestError` with the path of the first field that is wrong, its value and the reason."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        path, item = _most_precise(error)
        if item["type"] == "extra_forbidden":
            raise RequestError(f"{path}: unknown field", field=path) from error
        if item["type"] == "missing":
            raise RequestError(f"{path}: required, but not given", field=path) from error
        reason = item["msg"].removeprefix("Value error, ")
        raise RequestError(f"{path}: got {short(item['input'])}; {reason}", field=path) from error


def _most_precise(error: ValidationError) -> tuple[str, Any]:
    """Returns the first mistake and its path; where branches of a union disagree, that of the one that got furthest."""
    found = [
        (".".join(str(part) for part in item["loc"] if not _is_branch(part)), item)
        for item in error.errors(include_url=False)
    ]
    first = found[0][0]
    return max((entry for entry in found if entry[0].startswith(first)), key=lambda entry: len(entry[0]))


def _is_branch(part: object) -> bool:
    """True for the names that pydantic gives to the branches of a union; they are no part of the field's path."""
    return isinstance(part, str) and (part in ("str", "int") or part.startswith("_") or "[" in part)


def in_words_of(names: Mapping[str, str], error: AjetError) -> AjetError:
    """The error with the dialect's own name of the field to blame.

    Args:
        names: those that differ from `ChatRequest`'s, which the gateway and the engine go by.
        error: its message begins with the field.
    """
    name = names.get(error.field or "")
    if name is None:
        return error
    return type(error)(
        name + error.message.removeprefix(error.field or ""), field=name, retry_after_s=error.retry_after_s
    )


def short(value: object) -> str:
    """A value as an error message quotes it."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
