"""Tools for models whose chat template knows none: they are told in words, and calls and results become plain text."""

import json
from collections.abc import Sequence

from ajet_server.gateway.request import Conversation, Message, Tool

_PREAMBLE = """# Tools

These functions can be called. Each line between the tags describes one as JSON:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>
Write one such block for each call. The results come back between <tool_response> tags."""


def as_plain_messages(conversation: Conversation, *, takes_system: bool) -> list[Message]:
    """Returns the conversation without tools, tool calls and tool messages, all of which are now text.

    Args:
        takes_system: whether the template takes a system message; if not, the first user message begins with what it
            would say.
    """
    messages: list[Message] = []
    for message in conversation.messages:
        if message["role"] != "tool":
            messages.append(_with_calls_as_text(message))
        elif messages and messages[-1].get("role") == "user" and messages[-1].get("content", "").endswith(_CLOSE):
            messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n{_result(message)}"}
        else:
            messages.append({"role": "user", "content": _result(message)})
    return _explain(messages, conversation.tools, takes_system=takes_system)


_CLOSE = "\n</tool_response>"


def _result(message: Message) -> str:
    return f"<tool_response>\n{message['content']}{_CLOSE}"


def _with_calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written(call["function"]) for call in calls]
    content = "\n".join([message["content"], *written] if message["content"] else written)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _written(function: Message) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'


def _explain(messages: list[Message], tools: Sequence[Tool], *, takes_system: bool) -> list[Message]:
    if not tools:
        return messages
    preamble = _PREAMBLE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    role = "system" if takes_system else "user"
    first = messages[0] if messages else None
    if first is None or first["role"] != role:
        return [{"role": role, "content": preamble}, *messages]
    parts = (first["content"], preamble) if takes_system else (preamble, first["content"])
    return [first | {"content": "\n\n".join(part for part in parts if part)}, *messages[1:]]
