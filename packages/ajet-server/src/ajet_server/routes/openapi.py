"""What `/api/docs` says of requests that are read by hand, and of errors."""

from typing import Any

from pydantic import BaseModel

_TEXT: dict[str, Any] = {"type": "string"}
_OPTIONAL_TEXT: dict[str, Any] = {"type": ["string", "null"]}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _errors(body: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": body}}
    return {
        "4XX": {"description": "Refused; the message names the field and what would be right.", "content": content},
        "5XX": {"description": "Not now (503, with `Retry-After`), or a failure of the server.", "content": content},
    }


OUR_ERRORS = _errors(
    _object(
        error=_object(
            code=_TEXT, message=_TEXT, field=_OPTIONAL_TEXT, retry_after_s={"type": ["number", "null"], "minimum": 0}
        )
    )
)
OPENAI_ERRORS = _errors(_object(error=_object(message=_TEXT, type=_TEXT, param=_OPTIONAL_TEXT, code=_TEXT)))
ANTHROPIC_ERRORS = _errors(
    _object(
        type={"const": "error"},
        error=_object(type=_TEXT, message=_TEXT, details=_object(error_code=_TEXT)),
        request_id=_TEXT,
    )
)
"""Responses of FastAPI, by status, for the three shapes."""

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; as events with `stream: true`.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": _TEXT}},
    }
}


def asks(body: type[BaseModel], **example: Any) -> dict[str, Any]:
    """Returns `openapi_extra` for a route that reads its body itself.

    Args:
        body: what it is checked against. Known fields that are not served are left out of it.
        example: a body.
    """
    content = {"application/json": {"schema": _inlined(body.model_json_schema()), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Puts definitions in place of the references to them, which would not hold inside of a larger document."""
    definitions: dict[str, Any] = schema.pop("$defs", {})

    def put_in(value: Any) -> Any:
        if isinstance(value, list):
            return [put_in(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return put_in(definitions[value["$ref"].rpartition("/")[2]])
        return {name: put_in(item) for name, item in value.items()}

    whole: dict[str, Any] = put_in(schema)
    return whole
