"""What a chat template can tell messages apart by: their shapes.

A template branches on roles, on which fields a message has, on whether they are empty, and on strings of its own that
it looks for in a text (`'</think>' in content`). The shape of a message is a message that is alike in all of that and
holds nothing else. Messages of one shape are treated alike, so what is proven for shapes holds for them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, TypeAlias

from jinja2 import nodes

from ajet_server.gateway.request import Message

Shape: TypeAlias = str
"""JSON text of a message with nothing in it but what tells it apart."""

LONGEST_LOOP = 8
"""Messages. Repetitions of so many are recognised."""
MANY = 2
"""Parallel tool calls. More of them are the same to a template."""

MANY_HISTORIES = 4096
"""So many are remembered: conversations are mostly of the shapes of others."""
LONGEST_REMEMBERED = 64
"""Messages of these."""

_write = json.JSONEncoder(sort_keys=True).encode
_LOOKS_FOR = frozenset(("startswith", "endswith", "split", "rsplit", "replace", "find", "index", "count", "partition"))


class Shaper:
    """Makes shapes for one template.

    Args:
        looked_for: the strings that the template looks for in texts.
    """

    def __init__(self, looked_for: Iterable[str]) -> None:
        longest_first = sorted(looked_for, key=len, reverse=True)
        self._looked_for = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    def shapes(self, messages: Sequence[Message]) -> tuple[Shape, ...]:
        """Returns the shape of each message."""
        return tuple([self._shape_of(message) for message in messages])

    def _shape_of(self, message: Message) -> Shape:
        if len(message) == 2:  # role and content: the commonest form
            return _spoken(message["role"], self._bare(message["content"]))
        return intern(_write(self._shape(message)))

    def _shape(self, message: Message) -> Message:
        kept: Message = {"role": message["role"], "content": self._bare(message["content"])}
        if "reasoning_content" in message:
            kept["reasoning_content"] = self._bare(message["reasoning_content"])
        if "name" in message:
            kept["name"] = "n"
        if "tool_call_id" in message:
            kept["tool_call_id"] = _same_length(message["tool_call_id"])
        if "tool_calls" in message:
            kept["tool_calls"] = [_bare_call(call) for call in message["tool_calls"][:MANY]]
        return kept

    def _bare(self, text: str) -> str:
        parts = self._looked_for.split(text) if self._looked_for else [text]
        return "".join(part if index % 2 else _blank(part) for index, part in enumerate(parts))


def messages_of(shapes: Sequence[Shape]) -> list[Message]:
    """Returns messages of these shapes."""
    return [json.loads(shape) for shape in shapes]


def without_loops(shapes: tuple[Shape, ...], before: tuple[Shape, ...] = ()) -> tuple[Shape, ...]:
    """Returns `before` + `shapes` where what comes three times in a row or more is left twice."""
    short = len(before) + len(shapes) <= LONGEST_REMEMBERED
    return _remembered(shapes, before) if short else _without_loops(shapes, before)


def _without_loops(shapes: tuple[Shape, ...], before: tuple[Shape, ...]) -> tuple[Shape, ...]:
    kept = list(before)
    for shape in shapes:
        kept.append(shape)
        for size in range(1, LONGEST_LOOP + 1):
            if kept[-size:] == kept[-2 * size : -size] == kept[-3 * size : -2 * size]:
                del kept[-size:]
                break
    return tuple(kept)


_remembered = lru_cache(MANY_HISTORIES)(_without_loops)


def looked_for(tree: nodes.Template) -> set[str]:
    """Returns the strings that a template looks for in texts. Names of fields and roles are none."""
    return {text for text in _searched(tree) if text.strip() and not text.isidentifier()}


def _searched(tree: nodes.Template) -> Iterator[str]:
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _LOOKS_FOR:
            yield from _constants(call.args)
    for compared in tree.find_all(nodes.Compare):
        yield from _constants([compared.expr, *(operand.expr for operand in compared.ops)])


def _constants(expressions: Sequence[nodes.Expr]) -> Iterator[str]:
    for expression in expressions:
        own = [expression] if isinstance(expression, nodes.Const) else []
        for constant in [*own, *expression.find_all(nodes.Const)]:
            if isinstance(constant.value, str):
                yield constant.value


@lru_cache
def _spoken(role: str, bare: str) -> Shape:
    return intern(_write({"role": role, "content": bare}))


def _blank(text: str) -> str:
    if not text:
        return ""
    return " " if text.isspace() else "x"


def _same_length(value: str) -> str:
    return "0" * len(value)


def _bare_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = "{}" if call["function"]["arguments"].strip() in ("", "{}") else '{"x": "x"}'
    function = {"name": "f", "arguments": arguments}
    return {"id": _same_length(call["id"]), "type": "function", "function": function}
