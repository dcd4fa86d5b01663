"""The syntaxes in which models write tool calls and thinking: one description each.

Sources: the models' chat templates. A call is text between `open` and `close`; whitespace around tags is markup.
"""

import json
from dataclasses import dataclass
from typing import Any

from ajet_server.gateway.output.calls import ReadCalls, either, headed, read_json, read_xml


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How thinking is marked."""

    name: str
    open: str
    close: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How tool calls are written.

    Attributes:
        name: as a job names it.
        open: begins a call, or a list of calls.
        close: ends it; "" where the end of the JSON value does.
        read: what is between -> calls.
        required: text that forces some call.
        named: text that forces a call of `{name}`.
        lead: may stand once before calls.
        trail: may stand once after them.
        separator: may stand between them.
        bare: a JSON object with which an answer begins is a call without `open`.
        json: brackets and strings are JSON's; tags inside strings are part of the string.
        inert: other markup inside of a call; its brackets are not JSON's.
    """

    name: str
    open: str
    close: str
    read: ReadCalls
    required: str
    named: str
    lead: str = ""
    trail: str = ""
    separator: str = ""
    bare: bool = False
    json: bool = True
    inert: tuple[str, ...] = ()

    def opening(self, name: str | None) -> str:
        """Text that forces a call of this tool, or of any if None."""
        if name is None:
            return self.required
        # As the inside of a JSON string: for all others, names that the API allows read the same.
        return self.named.replace("{name}", json.dumps(name, ensure_ascii=False)[1:-1])

    @property
    def tags(self) -> tuple[str, ...]:
        """All markup."""
        return tuple(tag for tag in (self.lead, self.open, self.close, self.trail, *self.inert) if tag)


_SEP = "<｜tool▁sep｜>"
_DEEPSEEK: dict[str, Any] = {
    "open": "<｜tool▁call▁begin｜>",
    "close": "<｜tool▁call▁end｜>",
    "lead": "<｜tool▁calls▁begin｜>",
    "trail": "<｜tool▁calls▁end｜>",
}
_DEEPSEEK_OPENING: str = _DEEPSEEK["lead"] + _DEEPSEEK["open"]
_MISTRAL_READ = either(
    read_json, headed(r"(?P<name>[^\[{\s]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?P<arguments>\{.*\})")
)
_MISTRAL_INERT = ("[ARGS]", "[CALL_ID]")

TOOL_FORMATS: dict[str, ToolFormat] = {
    item.name: item
    for item in (
        ToolFormat("none", "", "", lambda _body, _tools: None, required="", named=""),
        ToolFormat(
            "hermes",
            "<tool_call>",
            "</tool_call>",
            read_json,
            required="<tool_call>\n",
            named='<tool_call>\n{"name": "{name}", "arguments": ',
        ),
        ToolFormat(
            "qwen3_coder",
            "<tool_call>",
            "</tool_call>",
            read_xml,
            required="<tool_call>\n<function=",
            named="<tool_call>\n<function={name}>\n",
            json=False,
        ),
        ToolFormat(
            "mistral",
            "[TOOL_CALLS]",
            "",
            _MISTRAL_READ,
            required="[TOOL_CALLS] [",
            named='[TOOL_CALLS] [{"name": "{name}", "arguments": ',
            inert=_MISTRAL_INERT,
        ),
        ToolFormat(
            "mistral_args",
            "[TOOL_CALLS]",
            "",
            _MISTRAL_READ,
            required="[TOOL_CALLS]",
            named="[TOOL_CALLS]{name}[ARGS]",
            inert=_MISTRAL_INERT,
        ),
        ToolFormat(
            "deepseek_v3",
            read=headed(rf"function{_SEP}(?P<name>[^\n]+)\n```json\n(?P<arguments>\{{.*\}})\s*```"),
            required=f"{_DEEPSEEK_OPENING}function{_SEP}",
            named=f"{_DEEPSEEK_OPENING}function{_SEP}{{name}}\n```json\n",
            inert=(_SEP,),
            **_DEEPSEEK,
        ),
        ToolFormat(
            "deepseek_v31",
            read=headed(rf"(?P<name>[^<\n]+){_SEP}(?P<arguments>\{{.*\}})"),
            required=_DEEPSEEK_OPENING,
            named=f"{_DEEPSEEK_OPENING}{{name}}{_SEP}",
            inert=(_SEP,),
            **_DEEPSEEK,
        ),
        ToolFormat(
            "phi4",
            "<|tool_call|>",
            "<|/tool_call|>",
            read_json,
            required="<|tool_call|>",
            named='<|tool_call|>[{"name": "{name}", "arguments": ',
        ),
        ToolFormat(
            "llama3",
            "<|python_tag|>",
            "",
            read_json,
            required='{"name": "',
            named='{"name": "{name}", "parameters": ',
            separator=";",
            bare=True,
        ),
    )
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    item.name: item
    for item in (
        ReasoningFormat("none", "", ""),
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    )
}
NO_TOOLS = TOOL_FORMATS["none"]
"""Without tags: everything is text."""
NO_REASONING = REASONING_FORMATS["none"]
"""Nothing is thinking."""
GENERIC = TOOL_FORMATS["hermes"]
"""The syntax that is explained to models whose template knows no tools."""
