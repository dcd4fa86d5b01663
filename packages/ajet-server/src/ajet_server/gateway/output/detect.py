"""Finds out how a model writes tool calls and thinking: its chat template renders a conversation with both."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ajet_core.errors import RequestError
from ajet_server.gateway.output.formats import (
    NO_REASONING,
    NO_TOOLS,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)
from ajet_server.gateway.output.parser import AnswerParser
from ajet_server.gateway.request import Message, Tool

RenderText: TypeAlias = Callable[[list[Message], list[Tool] | None], str]
"""A model's chat template: the conversation and the opening of the next turn. A RequestError refuses the messages."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template does with tools and thinking.

    Attributes:
        shows_tools: whether the tools of a request appear in the prompt at all.
        syntax: in which it writes tool calls; `none` if that is unknown.
        arguments_as_text: it wants arguments as JSON text and not as a dict.
        takes_system: it takes a system message.
        reasoning: how it marks thinking; `none` if it does not.
    """

    shows_tools: bool
    syntax: ToolFormat
    arguments_as_text: bool
    takes_system: bool
    reasoning: ReasoningFormat


_NAME, _KEY, _VALUE, _THOUGHT = "probe_the_weather", "probe_key", "probe_value", "probe thought"
_AS_TEXT = f'{{"{_KEY}":"{_VALUE}"}}'
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A key."}}},
    },
}
_ASK: Message = {"role": "user", "content": "probe question"}


def find_traits(render: RenderText, has_token: Callable[[str], bool]) -> Traits:
    """Probes a template.

    Args:
        render: the template.
        has_token: whether a text is one token of its own in the vocabulary.
    """
    shows_tools = _shows_tools(render)
    arguments_as_text, written = _written_call(render) if shows_tools else (False, "")
    return Traits(
        shows_tools=shows_tools,
        syntax=next((item for item in TOOL_FORMATS.values() if _reads_back(item, written)), NO_TOOLS),
        arguments_as_text=arguments_as_text,
        takes_system=_try(render, [{"role": "system", "content": "probe system"}, _ASK]) is not None,
        reasoning=_reasoning(render, has_token),
    )


def _try(render: RenderText, messages: list[Message], tools: list[Tool] | None = None) -> str | None:
    try:
        return render(messages, tools)
    except RequestError:
        return None


def _shows_tools(render: RenderText) -> bool:
    shown = _try(render, [_ASK], [_TOOL])
    return shown is not None and _NAME in shown


def _written_call(render: RenderText) -> tuple[bool, str]:
    """Whether arguments have to be text, and what the template writes after the question for a call."""
    prompt = _try(render, [_ASK], [_TOOL]) or ""
    for as_text, arguments in ((False, {_KEY: _VALUE}), (True, _AS_TEXT)):
        call: dict[str, Any] = {"type": "function", "function": {"name": _NAME, "arguments": arguments}}
        # Nine letters and digits, which is what Mistral's templates insist on.
        message = {"role": "assistant", "content": "", "tool_calls": [call | {"id": "probe0001"}]}
        text = _try(render, [_ASK, message], [_TOOL])
        if text is not None and _VALUE in text:
            return as_text, text[_common(prompt, text) :]
    return False, ""


def _common(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _reads_back(syntax: ToolFormat, written: str) -> bool:
    """Whether this syntax forces a call in the way in which it is written here, and reads it."""
    at = _squeezed_find(written, syntax.required)
    if at is None or (syntax.bare and written[:at].strip()):
        return False
    parser = AnswerParser(syntax, NO_REASONING, thinking=False, tools=[_TOOL], parallel=True, new_id=lambda: "probe")
    parser.feed(written[at:])
    parser.finish()
    return [(call.name, "".join(call.arguments.split())) for call in parser.calls] == [(_NAME, _AS_TEXT)]


def _squeezed_find(text: str, wanted: str) -> int | None:
    """Where `wanted` begins in `text`, spaces and line breaks aside; None if nowhere, or if it is empty."""
    signs = [re.escape(sign) for sign in wanted if not sign.isspace()]
    found = re.search(r"\s*".join(signs), text) if signs else None
    return found.start() if found else None


def _reasoning(render: RenderText, has_token: Callable[[str], bool]) -> ReasoningFormat:
    marked = [item for item in REASONING_FORMATS.values() if item.open]
    opening = (_try(render, [_ASK]) or "").rpartition(_ASK["content"])[2]
    thought: Message = {"role": "assistant", "content": "probe answer", "reasoning_content": _THOUGHT}
    shown = _try(render, [_ASK, thought]) or ""
    for item in marked:
        if item.open in opening or re.search(rf"{re.escape(item.open)}\s*{_THOUGHT}", shown) or _drops(render, item):
            return item
    return next((item for item in marked if has_token(item.open) and has_token(item.close)), NO_REASONING)


def _drops(render: RenderText, item: ReasoningFormat) -> bool:
    """Whether the template takes thinking in this form out of an earlier answer."""
    answer: Message = {"role": "assistant", "content": f"{item.open}{_THOUGHT}{item.close}probe answer"}
    shown = _try(render, [_ASK, answer, _ASK])
    return shown is not None and "probe answer" in shown and _THOUGHT not in shown
