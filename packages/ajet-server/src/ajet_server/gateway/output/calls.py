"""What stands inside a tool call -> its name and arguments, for each syntax.

Arguments are the JSON text as it was sampled, never written anew; only the XML syntax, which has none, gets one. All
readers return None for what they cannot read, whatever it is.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from math import isinf
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ajet_server.gateway.request import Tool


class RawCall(NamedTuple):
    """A call without an id."""

    name: str
    arguments: str


ReadCalls: TypeAlias = Callable[[str, Sequence[Tool]], list[RawCall] | None]

_SPACE = re.compile(r"[ \t\r\n]*")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if isinf(value):
        raise ValueError(f"{number} is more than a number can be")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_UNREADABLE = (ValueError, RecursionError)
"""What the decoder raises over text that is no JSON, or is nested too deep."""


def read_json(body: str, _tools: Sequence[Tool]) -> list[RawCall] | None:
    """Reads `{"name": ..., "arguments": {...}}`, or a list of these; `parameters` is another word for `arguments`."""
    body = body.strip()
    try:
        objects = list(_elements(body)) if body.startswith("[") else [body]
        return [_whole_characters(_call(dict(_members(item)))) for item in objects] or None
    except _UNREADABLE:
        return None


def headed(pattern: str) -> ReadCalls:
    """A reader of `header {...}`; the pattern has the groups `name` and `arguments`."""
    whole = re.compile(pattern, re.DOTALL)

    def read(body: str, _tools: Sequence[Tool]) -> list[RawCall] | None:
        found = whole.fullmatch(body.strip())
        if found is None or not found["name"].strip() or not _is_object(found["arguments"]):
            return None
        try:
            return [_whole_characters(RawCall(found["name"].strip(), found["arguments"]))]
        except ValueError:
            return None

    return read


def either(first: ReadCalls, second: ReadCalls) -> ReadCalls:
    """A reader of two syntaxes."""
    return lambda body, tools: first(body, tools) or second(body, tools)


_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}
"""How templates write these three, being Python."""


def read_xml(body: str, tools: Sequence[Tool]) -> list[RawCall] | None:
    """Reads `<function=name><parameter=key>value</parameter></function>`.

    A value is text where the tool's schema says so, else JSON if it can be read as such, else text.
    """
    function = _FUNCTION.fullmatch(body.strip())
    if function is None:
        return None
    properties = _properties(function[1], tools)
    arguments: dict[str, Any] = {}
    rest = function[2]
    while found := _PARAMETER.match(rest):
        arguments[found[1]] = _value(found[2], properties.get(found[1]))
        rest = rest[found.end() :]
    return None if rest.strip() else [RawCall(function[1], json.dumps(arguments, ensure_ascii=False))]


def _properties(name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    schema = next((tool["function"].get("parameters") for tool in tools if tool["function"]["name"] == name), None)
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        return _whole(text)
    except _UNREADABLE:
        return text


def _call(members: dict[str, str]) -> RawCall:
    name = _whole(members.get("name", "null"))
    if not isinstance(name, str) or not name:
        raise ValueError("a call has a name")
    arguments = members.get("arguments", members.get("parameters", "{}"))
    value = _whole(arguments)
    if isinstance(value, str):  # JSON in a string, as the API itself writes arguments
        arguments, value = value, _whole(value)
    if not isinstance(value, dict):
        raise ValueError("arguments are an object")
    return RawCall(name, arguments)


def _whole_characters(call: RawCall) -> RawCall:
    r"""Raises `ValueError` for half a surrogate pair ("\ud800"), which JSON can name and no answer can carry."""
    call.name.encode()
    if "\\u" in call.arguments:
        json.dumps(_whole(call.arguments), ensure_ascii=False).encode()
    return call


def _is_object(text: str) -> bool:
    try:
        return isinstance(_whole(text), dict)
    except _UNREADABLE:
        return False


def _whole(text: str) -> Any:
    return _DECODER.decode(text)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Each key of an object, with the JSON text of its value."""
    at = _expect(text, 0, "{")
    if text[at : at + 1] != "}":
        while True:
            key, at = _DECODER.raw_decode(text, at)
            if not isinstance(key, str):
                raise ValueError("a key is a string")
            start = _expect(text, _skip(text, at), ":")
            _, end = _DECODER.raw_decode(text, start)
            yield key, text[start:end]
            at = _skip(text, end)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    _end(text, _expect(text, at, "}"))


def _elements(text: str) -> Iterator[str]:
    """The JSON text of each element of a list."""
    at = _expect(text, 0, "[")
    if text[at : at + 1] != "]":
        while True:
            _, end = _DECODER.raw_decode(text, at)
            yield text[at:end]
            at = _skip(text, end)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    _end(text, _expect(text, at, "]"))


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} is missing")
    return _skip(text, at + 1)


def _end(text: str, at: int) -> None:
    if at != len(text):
        raise ValueError("something follows the value")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
