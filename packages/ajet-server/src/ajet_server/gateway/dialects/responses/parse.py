"""Reads a request of the Responses API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.chat.options import labels
from ajet_server.gateway.dialects.fields import as_object, drop_off, short, validate
from ajet_server.gateway.dialects.responses.body import (
    LOGPROBS,
    NESTED_OFF,
    OFF,
    SEALED,
    FunctionTool,
    NamedChoice,
    RequestBody,
)
from ajet_server.gateway.dialects.responses.ids import answer_id
from ajet_server.gateway.dialects.responses.turns import messages_of
from ajet_server.gateway.request import (
    ChatRequest,
    Conversation,
    Message,
    NamedTool,
    ResponseFormat,
    Tool,
    ToolChoice,
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request that was read.

    Attributes:
        request: what to continue, and how to sample.
        stream: whether the answer is wanted as events.
        repeated: fields of the request that the response repeats.
        sealed: whether thinking is wanted as `encrypted_content`, too.
    """

    request: ChatRequest
    stream: bool
    repeated: dict[str, Any]
    sealed: bool


def parse(raw: object, recall: Callable[[str], list[Message]]) -> Parsed:
    """Reads a request body.

    `store` may be anything: answers are always recorded.

    Args:
        raw: the body as JSON.
        recall: from the id of an earlier answer of the same episode to its conversation, the answer included; called
            for `previous_response_id`. Instructions are those of one request only, so it leaves out the first message
            of a request with the label `instructions`. Raises `NotFoundError` if there is no such answer.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served, with its value.
        NotFoundError: from `recall`.
    """
    present = _without_off(as_object(raw))
    body = validate(RequestBody, present)
    _check_effects(body)
    earlier = recall(answer_id(body.previous_response_id)) if body.previous_response_id else []
    said = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else messages_of(body.input)
    if not said:
        raise RequestError("input: says nothing: its only items are thinking without a word", field="input")
    instructions: list[Message] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    request = _request(body, [*instructions, *earlier, *said])
    return Parsed(request, body.stream, _repeated(body, present), SEALED in body.include)


def _without_off(present: dict[str, Any]) -> dict[str, Any]:
    present = drop_off(present, OFF)
    for name, off in NESTED_OFF.items():
        if isinstance(inner := present.get(name), dict):
            fields = {f"{name}.{key}": value for key, value in cast("dict[str, Any]", inner).items()}
            kept = drop_off(fields, {f"{name}.{key}": values for key, values in off.items()})
            present[name] = {path.removeprefix(f"{name}."): value for path, value in kept.items()}
    return present


def _check_effects(body: RequestBody) -> None:
    if body.top_logprobs and LOGPROBS not in body.include:
        raise RequestError(f"top_logprobs: has no effect without include: [{LOGPROBS!r}]", field="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options: has no effect without stream: true", field="stream_options")


def _request(body: RequestBody, messages: list[Message]) -> ChatRequest:
    tools = _tools(body.tools)
    conversation = Conversation(messages, tools, _tool_choice(body), body.parallel_tool_calls)
    return ChatRequest(
        model=body.model,
        prompt=conversation,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        response_format=_format(body),
        logprobs=LOGPROBS in body.include,
        top_logprobs=body.top_logprobs,
        return_token_ids=body.return_token_ids,
        labels=labels(
            instructions=bool(body.instructions),
            user=body.user,
            metadata=body.metadata,
            safety_identifier=body.safety_identifier,
            prompt_cache_key=body.prompt_cache_key,
        ),
    )


def _tools(sent: list[FunctionTool]) -> tuple[Tool, ...]:
    names: set[str] = set()
    for index, tool in enumerate(sent):
        if tool.name in names:
            field = f"tools.{index}.name"
            raise RequestError(f"{field}: got {tool.name!r} a second time; names must differ", field=field)
        names.add(tool.name)
    return tuple({"type": "function", "function": _definition(tool)} for tool in sent)


def _definition(tool: FunctionTool) -> dict[str, Any]:
    """In the order of the normal form: templates print a tool as it stands."""
    optional = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict or None}
    return {"name": tool.name} | {name: value for name, value in optional.items() if value is not None}


def _tool_choice(body: RequestBody) -> ToolChoice:
    choice, names = body.tool_choice, [tool.name for tool in body.tools]
    if isinstance(choice, NamedChoice):
        if choice.name not in names:
            field = "tool_choice.name"
            raise RequestError(f"{field}: got {choice.name!r}; one of tools is needed: {short(names)}", field=field)
        return NamedTool(choice.name)
    if choice == "required" and not names:
        raise RequestError("tool_choice: got 'required' without any tools", field="tool_choice")
    return choice


def _format(body: RequestBody) -> ResponseFormat | None:
    wanted = body.text.format if body.text else None
    if wanted is None:
        return None
    extra = {"name": wanted.name, "schema": wanted.schema_, "description": wanted.description, "strict": wanted.strict}
    for name, value in extra.items():
        field = f"text.format.{name}"
        if wanted.type != "json_schema" and value is not None:
            raise RequestError(f"{field}: has no effect without type 'json_schema'", field=field)
        if wanted.type == "json_schema" and value is None and name in ("name", "schema"):
            raise RequestError(f"{field}: required, but not given", field=field)
    if wanted.schema_ is None:
        return None if wanted.type == "text" else ResponseFormat(None)
    about = {} if wanted.description is None else {"description": wanted.description}
    return ResponseFormat(about | wanted.schema_)


def _repeated(body: RequestBody, present: dict[str, Any]) -> dict[str, Any]:
    """What the response says about its request, defaults included."""
    nothing = {"description": None, "parameters": None, "strict": None}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "temperature": body.temperature,
        "text": {"format": present.get("text", {}).get("format") or {"type": "text"}},
        "tool_choice": present.get("tool_choice", "auto"),
        "tools": [nothing | tool for tool in present.get("tools", [])],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "user": body.user,
    }
