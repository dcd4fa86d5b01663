"""The body of a request: every field, item and part that is understood, and the values that ask for nothing."""

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from ajet_server.gateway.dialects.chat.options import Strict
from ajet_server.gateway.dialects.fields import Json, Text, ToolName
from ajet_server.gateway.dialects.responses.ids import unseal

OFF: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "context_management": ([],),
    "moderation": (),
    "image": (),
    "access_programs": (),
    "background_options": (),
    "prompt_cache_options": ({"mode": "implicit"}, {}),
    "prompt_cache_retention": ("in_memory",),
}
"""Fields that are known and not served, with the values that ask for nothing. `null` always asks for nothing."""

NESTED_OFF: dict[str, dict[str, tuple[Any, ...]]] = {
    "reasoning": {
        "effort": (),
        "summary": ("auto",),
        "generate_summary": ("auto",),
        "context": ("auto",),
        "mode": ("standard",),
    },
    "text": {"verbosity": ("medium",)},
    "stream_options": {"include_obfuscation": (False,)},
}
"""The same inside of fields. An "auto" summary asks for what there is: none, since there is the thinking itself."""

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
PARAGRAPH = "\n\n"

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_PARTS = ("input_text", "output_text")


def _type_of(value: object) -> object:
    """What an item is; one without a type is a message, unless it is just an id."""
    if not isinstance(value, dict):
        return "message"
    fields = cast("dict[str, Any]", value)
    return fields.get("type") or ("item_reference" if fields.keys() == {"id"} else "message")


def _known_item(value: object) -> object:
    kind = _type_of(value)
    if kind == "item_reference":
        raise ValueError("item_reference is not served; send the item itself, or name its answer previous_response_id")
    if kind not in _ITEMS:
        raise ValueError(f"items of type {kind!r} are not served, only {', '.join(_ITEMS)}")
    return value


def _known_part(value: object) -> object:
    if isinstance(value, dict) and (kind := cast("dict[str, Any]", value).get("type")) not in _PARTS:
        raise ValueError(f"content of type {kind!r} is not served, only {' and '.join(_PARTS)}")
    return value


def _function(value: object) -> object:
    if isinstance(value, dict) and (kind := cast("dict[str, Any]", value).get("type")) != "function":
        raise ValueError(f"{kind!r} is not served, only 'function' is; run other tools in the agent")
    return value


def _readable(content: str) -> str:
    unseal(content)
    return content


Name: TypeAlias = Annotated[Text, Field(min_length=1)]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class _Direct(Strict):
    type: Literal["direct"]


class _Item(Strict):
    """What items have in common: which one it is, and how it was when it was given out."""

    id: Text | None = None
    status: Status | None = None


class _Part(Strict):
    """Text. What an answer said about its own text may come back with it; a cache mark asks for what happens anyway."""

    type: Literal["input_text", "output_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


Content: TypeAlias = Text | list[Annotated[_Part, BeforeValidator(_known_part)]]


class MessageItem(_Item):
    """What somebody said."""

    type: Literal["message"] | None = None
    role: Literal["user", "system", "developer", "assistant"]
    content: Content
    phase: None = None


class CallItem(_Item):
    """A call of a tool that the model made."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text
    namespace: None = None
    caller: _Direct | None = None
    async_: Annotated[Literal[False] | None, Field(alias="async")] = None


class OutputItem(_Item):
    """What a tool gave back."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Content
    name: Text | None = None
    namespace: None = None
    caller: _Direct | None = None


class _Summary(Strict):
    type: Literal["summary_text"]
    text: Text


class _Thought(Strict):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(_Item):
    """Thinking of the model: its own words, or else those that were sealed, or else a summary."""

    type: Literal["reasoning"]
    summary: list[_Summary] | None = None
    content: list[_Thought] | None = None
    encrypted_content: Annotated[str, AfterValidator(_readable)] | None = None

    def text(self) -> str:
        """The thinking; several parts are paragraphs."""
        if self.content:
            return PARAGRAPH.join(part.text for part in self.content)
        if self.encrypted_content:
            return unseal(self.encrypted_content)
        return PARAGRAPH.join(part.text for part in self.summary or ())


Item: TypeAlias = MessageItem | CallItem | OutputItem | ReasoningItem


# The tags begin with an underscore: paths of mistakes leave such names out.
_TaggedItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("_message")]
    | Annotated[CallItem, Tag("_function_call")]
    | Annotated[OutputItem, Tag("_function_call_output")]
    | Annotated[ReasoningItem, Tag("_reasoning")],
    Discriminator(lambda value: f"_{_type_of(value)}"),
    BeforeValidator(_known_item),
]


class FunctionTool(Strict):
    """A tool that the agent runs."""

    type: Literal["function"]
    name: ToolName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    async_: Annotated[Literal[False] | None, Field(alias="async")] = None
    defer_loading: Literal[False] | None = None
    output_schema: None = None


class NamedChoice(Strict):
    """The one tool that has to be called."""

    type: Literal["function"]
    name: Name


class Format(Strict):
    """What the text has to be. Neither `name` nor `strict` changes anything: every schema is kept strictly."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: Annotated[Json | None, Field(alias="schema")] = None
    strict: bool | None = None


class _TextConfig(Strict):
    format: Format | None = None


class _Nothing(Strict):
    """A field of which every known part asks for nothing."""


class RequestBody(Strict):
    """The body, without the fields in `OFF`."""

    model: Text
    input: Annotated[
        Annotated[Text, Tag("_text")] | Annotated[list[_TaggedItem], Field(min_length=1), Tag("_items")],
        Discriminator(lambda value: "_items" if isinstance(value, list) else "_text"),
    ]
    instructions: Text | None = None
    previous_response_id: Name | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    tools: Annotated[list[Annotated[FunctionTool, BeforeValidator(_function)]], Field(default_factory=list)]
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag("_word")] | Annotated[NamedChoice, Tag("_named")],
        Discriminator(lambda value: "_named" if isinstance(value, dict) else "_word"),
        BeforeValidator(_function),
    ] = "auto"
    parallel_tool_calls: bool = True
    text: _TextConfig | None = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Field(default_factory=list)
    ]
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    stream: bool = False
    stream_options: _Nothing | None = None
    reasoning: _Nothing | None = None
    store: bool = True
    user: Text | None = None
    metadata: dict[Text, Text] | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    return_token_ids: bool = False
