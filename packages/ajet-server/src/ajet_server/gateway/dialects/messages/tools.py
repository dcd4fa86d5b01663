"""Tools and the choice among them, in normal form."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import Body, Json, Text, ToolName, short
from ajet_server.gateway.request import NamedTool, Tool, ToolChoice


class Strict(Body):
    """A part of a body whose values have the type that the API says."""

    model_config = ConfigDict(strict=True)


class ToolParam(Strict):
    """A tool on the wire. Only the caller's own are served, which have no type or this one."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: Text | None = None
    input_schema: Json
    strict: bool | None = None
    # Two hints at when something is computed or sent: prefixes are cached anyway, and a call is sent whole.
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None
    # Not served; these values ask for nothing.
    defer_loading: Literal[False] | None = None
    input_examples: Annotated[list[Any], Field(max_length=0)] | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    def normal(self) -> Tool:
        """The tool in normal form."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict or None,  # false asks for nothing; the other dialects leave it out
        }
        return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


class ToolChoiceParam(Strict):
    """`tool_choice` on the wire."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool | None = None


def normal_tools(given: Sequence[ToolParam]) -> tuple[Tool, ...]:
    """The tools in normal form. Raises `RequestError` if two have one name."""
    names: set[str] = set()
    for index, tool in enumerate(given):
        if tool.name in names:
            raise _wrong(f"tools.{index}.name", tool.name, "another tool has this name")
        names.add(tool.name)
    return tuple(tool.normal() for tool in given)


def normal_choice(choice: ToolChoiceParam | None, tools: Sequence[ToolParam]) -> ToolChoice:
    """Which tools may or must be called. Raises `RequestError` for a choice that these tools cannot meet."""
    if choice is None or choice.type == "auto":
        found: ToolChoice = "auto"
    elif choice.type == "none":
        found = "none"
    elif not tools:
        raise _wrong("tool_choice.type", choice.type, "it needs tools")
    else:
        found = "required" if choice.type == "any" else _named(choice.name, tools)
    if choice is not None and choice.name is not None and choice.type != "tool":
        raise _wrong("tool_choice.name", choice.name, "it goes with type 'tool' only")
    return found


def _named(name: str | None, tools: Sequence[ToolParam]) -> NamedTool:
    if name is None:
        raise RequestError("tool_choice.name: required, but not given", field="tool_choice.name")
    if all(tool.name != name for tool in tools):
        raise _wrong("tool_choice.name", name, "no tool has this name")
    return NamedTool(name)


def _wrong(at: str, value: object, reason: str) -> RequestError:
    return RequestError(f"{at}: got {short(value)}; {reason}", field=at)
