"""The body of a request: conversation, tools, sampling."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import (
    TEXT_SCHEMA,
    Json,
    Text,
    as_object,
    drop_off,
    messages_schema,
    validate,
)
from ajet_server.gateway.dialects.messages.conversation import read_messages
from ajet_server.gateway.dialects.messages.tools import Strict, ToolChoiceParam, ToolParam, normal_choice, normal_tools
from ajet_server.gateway.request import ChatRequest, Conversation, ResponseFormat

_OFF: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "container": (),
    "mcp_servers": ([],),
    "inference_geo": (),
    "diagnostics": ({"previous_message_id": None},),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
}
"""Fields that are known and not served, with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, and how its answer is sent."""

    request: ChatRequest
    stream: bool


class _Thinking(Strict):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Literal["summarized"] | None = None


class _Format(Strict):
    type: Literal["json_schema"]
    schema_: Annotated[Json, Field(alias="schema")]


class _OutputConfig(Strict):
    effort: Literal["high"] | None = None  # the API's default; a chat template knows no other
    format: _Format | None = None


class _Metadata(Strict):
    user_id: Text | None = None


class CountBody(Strict):
    """What makes the prompt. The conversation is read by hand."""

    model: Text
    messages: Annotated[list[Any], Field(min_length=1), WithJsonSchema(messages_schema("user", "assistant", "system"))]
    system: Annotated[Any, WithJsonSchema(TEXT_SCHEMA)] = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig = _OutputConfig()
    cache_control: dict[str, Any] | None = None  # asks for caching, which happens anyway


class RequestBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stop_sequences: Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stream: bool = False
    metadata: _Metadata | None = None
    user_profile_id: Text | None = None
    return_token_ids: bool = False


def parse(raw: object, *, thinks: bool) -> Parsed:
    """Reads the body of a request.

    Args:
        raw: the parsed JSON.
        thinks: whether the model's template has a place for thinking. Whether a model thinks is up to its template, so
            `thinking` is accepted where it asks for what happens anyway: `adaptive` always, `enabled` if the model
            thinks, `disabled` if it does not. A budget is a target in this API; `max_tokens` bounds thinking too.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served, with its value.
    """
    body = validate(RequestBody, drop_off(as_object(raw), _OFF))
    _check_thinking(body.thinking, thinks, body.max_tokens)
    wanted = body.output_config.format
    request = ChatRequest(
        model=body.model,
        prompt=_conversation(body),
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=tuple(body.stop_sequences or ()),
        seed=body.seed,
        response_format=None if wanted is None else ResponseFormat(wanted.schema_),
        return_token_ids=body.return_token_ids,
        labels=_labels(body),
    )
    return Parsed(request, body.stream)


def parse_count(raw: object, *, thinks: bool) -> ChatRequest:
    """Reads the body of a request to count its prompt's tokens; nothing else of the result is of use. As `parse`."""
    body = validate(CountBody, drop_off(as_object(raw), _OFF))
    _check_thinking(body.thinking, thinks, None)
    return ChatRequest(model=body.model, prompt=_conversation(body))


def _conversation(body: CountBody) -> Conversation:
    tools, choice = body.tools or (), body.tool_choice
    return Conversation(
        messages=read_messages(body.system, body.messages),
        tools=normal_tools(tools),
        tool_choice=normal_choice(choice, tools),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
    )


def _check_thinking(thinking: _Thinking | None, thinks: bool, max_tokens: int | None) -> None:
    if thinking is None:
        return
    budget = thinking.budget_tokens
    if (budget is not None) != (thinking.type == "enabled"):
        _refuse("thinking.budget_tokens: it goes with type 'enabled', and only with it")
    if budget is not None and max_tokens is not None and budget >= max_tokens:
        _refuse(f"thinking.budget_tokens: {budget} must be less than max_tokens={max_tokens}")
    if thinking.type == "enabled" and not thinks:
        _refuse("thinking.type: 'enabled' is not served, for this model's template has no thinking; leave it out")
    if thinking.type == "disabled" and thinks:
        _refuse("thinking.type: 'disabled' is not served, for this model's template makes it think; leave it out")


def _refuse(message: str) -> None:
    raise RequestError(message, field=message.partition(":")[0])


def _labels(body: RequestBody) -> dict[str, Any]:
    metadata = None if body.metadata is None else body.metadata.model_dump(exclude_none=True)
    labels = {"metadata": metadata, "user_profile_id": body.user_profile_id}
    return {name: value for name, value in labels.items() if value}
