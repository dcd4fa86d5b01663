"""Reads the body of Chat Completions."""

from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field, WithJsonSchema

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.chat import options
from ajet_server.gateway.dialects.chat.messages import ROLES, normal_messages
from ajet_server.gateway.dialects.chat.options import Options, Parsed, Strict
from ajet_server.gateway.dialects.fields import (
    Json,
    Text,
    ToolName,
    as_object,
    drop_off,
    messages_schema,
    short,
    validate,
)
from ajet_server.gateway.request import Conversation, NamedTool, ResponseFormat, Tool, ToolChoice

_OFF: dict[str, tuple[Any, ...]] = options.OFF | {
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    # A model thinks as its chat template says; how much cannot be asked for.
    "reasoning_effort": (),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "prompt_cache_options": ({"mode": "implicit"}, {}),
    "prompt_cache_retention": ("in_memory",),
}
"""Fields that are known and not served, with the values that ask for nothing. `null` always asks for nothing."""

_MODERN: dict[str, tuple[tuple[Any, ...], str]] = {
    "functions": (([],), "tools"),
    "function_call": (("none", "auto"), "tool_choice"),
}
"""Fields that others took the place of: the values that ask for nothing, and the field to send."""


class _Function(Strict):
    name: ToolName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None

    def normal(self) -> Tool:
        """In the order of the normal form: templates print a tool as it stands."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


class _Tool(Strict):
    type: Literal["function"]
    function: _Function


class _NamedFunction(Strict):
    name: Text


class _Named(Strict):
    type: Literal["function"]
    function: _NamedFunction


class _Schema(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[Json, Field(alias="schema")]
    # Either way the answer is of the schema: what is asked for with False is less than that.
    strict: bool | None = None


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class RequestBody(Options):
    messages: Annotated[Any, WithJsonSchema(messages_schema(*ROLES))]  # by hand: chat.messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Named | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # Answers are always recorded, and never given out by their id later.
    store: bool | None = None
    metadata: dict[Text, Text] | None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None


def parse(raw: object) -> Parsed:
    """Reads a request body.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served, with its value.
    """
    body = validate(RequestBody, drop_off(_drop_superseded(as_object(raw)), _OFF))
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs: has no effect without logprobs: true", field="top_logprobs")
    request = options.request(body, _conversation(body), _max_tokens(body))
    more = options.labels(
        metadata=body.metadata, prompt_cache_key=body.prompt_cache_key, safety_identifier=body.safety_identifier
    )
    request = replace(
        request,
        response_format=_response_format(body.response_format),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        labels=request.labels | more,
    )
    return options.parsed(body, request)


def _drop_superseded(present: dict[str, Any]) -> dict[str, Any]:
    if present.keys().isdisjoint(_MODERN):
        return present
    for name, (off, modern) in _MODERN.items():
        if name in present and present[name] not in off:
            raise RequestError(f"{name}: {short(present[name])} is not served; send {modern}", field=name)
    return {name: value for name, value in present.items() if name not in _MODERN}


def _max_tokens(body: RequestBody) -> int | None:
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise RequestError(
            f"max_tokens: {body.max_tokens} contradicts max_completion_tokens: {body.max_completion_tokens}; send one",
            field="max_tokens",
        )
    return body.max_completion_tokens or body.max_tokens


def _conversation(body: RequestBody) -> Conversation:
    tools = tuple(tool.function.normal() for tool in body.tools or ())
    names = [tool["function"]["name"] for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            field = f"tools.{index}.function.name"
            raise RequestError(f"{field}: got {name!r} twice; every tool needs a name of its own", field=field)
    return Conversation(
        messages=normal_messages(body.messages),
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, names),
        parallel_tool_calls=body.parallel_tool_calls is not False,
    )


def _tool_choice(choice: Literal["none", "auto", "required"] | _Named | None, names: list[str]) -> ToolChoice:
    if isinstance(choice, _Named):
        name = choice.function.name
        if name not in names:
            field = "tool_choice.function.name"
            raise RequestError(f"{field}: got {name!r}; one of tools is needed: {short(names)}", field=field)
        return NamedTool(name)
    if choice == "required" and not names:
        raise RequestError("tool_choice: got 'required' without any tools", field="tool_choice")
    return choice or "auto"


def _response_format(wanted: _Format | None) -> ResponseFormat | None:
    if wanted is None:
        return None
    if (wanted.type == "json_schema") != (wanted.json_schema is not None):
        reason = "required with" if wanted.json_schema is None else "has no effect without"
        field = "response_format.json_schema"
        raise RequestError(f"{field}: {reason} type 'json_schema'", field=field)
    if wanted.json_schema is None:
        return None if wanted.type == "text" else ResponseFormat(None)
    about = {} if wanted.json_schema.description is None else {"description": wanted.json_schema.description}
    return ResponseFormat(about | wanted.json_schema.schema_)
