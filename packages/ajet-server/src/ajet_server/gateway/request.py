"""The internal request, its increments and its answer, in which all dialects meet.

A message is a dict as chat templates know it, in one normal form:

    role               system, user, assistant or tool
    content            text; "" where there is none
    reasoning_content  assistant: its thinking, if there is any
    tool_calls         assistant: [{"id", "type": "function", "function": {"name", "arguments": JSON text}}], if any
    tool_call_id       tool: which call it answers
    name               of the speaker or the tool, if given

A tool is {"type": "function", "function": {"name", "description"?, "parameters"?: JSON schema, "strict"?}}.
"""

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ajet_server.worker.versions import Spans

Message: TypeAlias = dict[str, Any]
Tool: TypeAlias = dict[str, Any]
IntIds: TypeAlias = npt.NDArray[np.int32]
FinishReason = Literal["stop", "length", "tool_calls"]


class NamedTool(msgspec.Struct, frozen=True):
    """The model has to call this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


class Conversation(msgspec.Struct, frozen=True):
    """Messages to continue, and the tools that may be called.

    Attributes:
        messages: at least one, in normal form.
        tools: by different names.
        tool_choice: `required` and a name only with tools.
        parallel_tool_calls: False keeps the first call of an answer only.
    """

    messages: list[Message]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True


class RawPrompt(msgspec.Struct, frozen=True):
    """A prompt that no template is put around: text, or ids as they are."""

    content: str | IntIds


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the answer's text has to be: any JSON object, or one of a schema."""

    schema: dict[str, Any] | None


class ChatRequest(msgspec.Struct, frozen=True):
    """What to continue, and how to sample.

    Attributes:
        model: the name that the caller sent.
        prompt: what to continue.
        max_tokens: bound on each completion; None for the job's default.
        temperature: 0 is greedy.
        top_p: 1 is off.
        top_k: 0 is off.
        stop: strings that end a completion.
        seed: of the first choice; choice i samples with seed + i.
        n: choices, each a call of its own on the same prompt.
        logit_bias: (token id, added to its logit).
        response_format: None is free text.
        logprobs: whether log-probabilities are returned.
        top_logprobs: likeliest alternatives returned with each.
        return_token_ids: whether prompt and completion ids are returned (an extension).
        labels: what the caller wants recorded with the call (`user`, `metadata`).
    """

    model: str
    prompt: Conversation | RawPrompt
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    logit_bias: tuple[tuple[int, float], ...] = ()
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    labels: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model made.

    Attributes:
        id: unique within the episode.
        name: of the tool.
        arguments: JSON text of an object.
    """

    id: str
    name: str
    arguments: str


class TokenLogprob(msgspec.Struct, frozen=True):
    """One sampled token.

    Attributes:
        token_id: its id.
        text: its text, special ones included.
        logprob: log-probability at the sampling temperature.
        top: (text, logprob) of the likeliest tokens, likeliest first.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """What a choice grew by. The deltas of a choice put together are its `Choice`.

    Attributes:
        index: of the choice.
        text: more of its text.
        reasoning: more of its thinking.
        tool_calls: calls that are now complete.
        tokens: the sampled ids behind it, in order; ids whose text is still held back come with a later delta.
        logprobs: of `tokens`, if they were asked for.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Started(msgspec.Struct, frozen=True):
    """The first item of a stream: what is known of the answer before its end.

    It comes together with the first delta: until then nothing is sent, so an error has an HTTP status of its own.

    Attributes:
        id: of the answer that is to come, as in `Answer`; so are all others.
        created: seconds since the epoch.
        model: the name that is served.
        prompt_tokens: how many ids the engine was given.
        prompt_ids: these, if they were asked for; else none.
    """

    id: str
    created: int
    model: str
    prompt_tokens: int
    prompt_ids: list[int]


class Choice(msgspec.Struct, frozen=True):
    """One finished completion.

    Attributes:
        index: of the choice.
        call_id: under which it is recorded.
        text: without thinking, tool calls, special tokens and everything from the stop string on.
        reasoning: its thinking; "" without any.
        tool_calls: in order.
        malformed_tool_calls: attempts at a call that could not be read; they stay part of `text`.
        finish_reason: `tool_calls` if there are any and it was not cut off.
        stop: the stop string that ended it.
        token_ids: every sampled id; `len(token_ids)` is what usage reports.
        logprobs: one for each, if they were asked for.
        reasoning_tokens: ids among them that are thinking.
        versions: (first id, weight version) of each run of ids that weights of one version sampled.
    """

    index: int
    call_id: str
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    malformed_tool_calls: int
    finish_reason: FinishReason
    stop: str | None
    token_ids: list[int]
    logprobs: tuple[TokenLogprob, ...]
    reasoning_tokens: int
    versions: Spans = ()

    def message(self) -> Message:
        """The assistant's message, as a later request would send it back."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


class Answer(msgspec.Struct, frozen=True):
    """A finished request. All of it is durable.

    Attributes:
        id: of the answer: the call id of its first choice.
        created: seconds since the epoch.
        model: the name that is served.
        choices: by index.
        prompt_tokens: how many ids the engine was given; counted once, however many choices there are.
        prompt_ids: these, if they were asked for; else none.
        cached_tokens: of these, how many were not computed anew (in the first choice).
        weight_version: the oldest that sampled one of its ids.
    """

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    prompt_ids: list[int]
    cached_tokens: int
    weight_version: int

    @property
    def weight_versions(self) -> list[int]:
        """Every version that sampled one of its ids, the oldest first."""
        later = {version for choice in self.choices for _, version in choice.versions}
        return sorted({self.weight_version} | later)

    @property
    def completion_tokens(self) -> int:
        """Sampled ids of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        """Of these, those that are thinking."""
        return sum(choice.reasoning_tokens for choice in self.choices)


Item: TypeAlias = Started | Delta | Answer
"""A stream is one `Started`, any number of `Delta`, and the `Answer`, which is durable by then."""
