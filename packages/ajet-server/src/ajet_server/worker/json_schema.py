"""JSON schemas that completions are held to: what they are to the library that follows them. Never imports torch."""

import json
from typing import Any

from ajet_core.errors import RequestError

_FIELD = "response_format"
_MAX_CHARACTERS = 65_536
"""Of a schema as JSON. Looking at one takes longer than in proportion: others' calls would wait for seconds."""


def check_json_schema(schema: dict[str, Any]) -> None:
    """Checks that completions can be held to a schema. Takes well under a millisecond for most, 5 ms for 200 patterns.

    Raises:
        RequestError: it is no JSON schema, too long, nothing satisfies it, or it uses what is not supported.
    """
    from llguidance import LLMatcher

    length = len(json.dumps(schema))
    if length > _MAX_CHARACTERS:
        raise schema_error(f"it has {length:,} characters, more than {_MAX_CHARACTERS:,}")
    wrong, messages = LLMatcher.validate_grammar_with_warnings(_grammar_of(schema))
    if wrong:
        raise schema_error(messages[0])


def grammar(json_schema: str) -> str:
    """Returns the library's grammar for `Sampling.json_schema`.

    Raises:
        RequestError: it is not JSON.
    """
    try:
        schema: object = json.loads(json_schema)
    except (ValueError, RecursionError) as error:
        raise schema_error(f"it is not JSON: {error}") from error
    return _grammar_of(schema)


def schema_error(why: str) -> RequestError:
    """The error for a schema that completions cannot be held to; the first line of `why` is enough."""
    return RequestError(
        f"{_FIELD}: the schema cannot be served: {why.splitlines()[0]}; use a JSON schema whose keywords are supported",
        field=_FIELD,
    )


def _grammar_of(schema: object) -> str:
    from llguidance import LLMatcher

    # An empty schema would allow any JSON value; here it stands for JSON mode, which asks for an object.
    return LLMatcher.grammar_from_json_schema(json.dumps({"type": "object"} if schema == {} else schema))
