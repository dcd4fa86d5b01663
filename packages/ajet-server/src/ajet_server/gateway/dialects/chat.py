"""The Chat Completions dialect: what is understood is listed here, everything else is refused by name.

A field of the OpenAI API that is not served yet may still be sent with the value that means "off" (`stream: false`,
`n: 1`), since several SDKs and frameworks always send it.
"""

import time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import RequestError
from ajet_server.gateway.request import ChatRequest, ChatResult

_OFF: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "stream_options": (),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": (),
    "function_call": ("none", "auto"),
}
"""Fields that are known and not served yet, with the values that ask for nothing. `null` always asks for nothing."""


def _characters(text: str) -> str:
    r"""Refuses half of a surrogate pair, which JSON can name ("\ud800"): neither tokenizer nor ledger takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
    return text


Text = Annotated[str, AfterValidator(_characters)]


_LOWEST_LOGPROB = -9999.0
"""What OpenAI's API says instead of minus infinity, which JSON cannot."""


_MESSAGE_OFF = ("refusal", "tool_calls", "function_call", "audio", "annotations", "reasoning", "reasoning_content")
"""Fields of a message that are not served yet; empty ones come back with every answer that is sent again."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: Text


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[_Part]
    name: Text | None = None
    tool_call_id: Text | None = None

    def plain(self) -> dict[str, str]:
        """The message as a chat template wants it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        plain = {"role": "system" if self.role == "developer" else self.role, "content": text}
        return plain | {
            key: value for key, value in (("name", self.name), ("tool_call_id", self.tool_call_id)) if value
        }


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop: Text | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None


def parse(raw: object) -> ChatRequest:
    """Reads a request body.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served yet, with its value.
    """
    if not isinstance(raw, dict):
        raise RequestError(f"the body must be a JSON object, got {type(raw).__name__}")
    body = _validate(_drop_what_is_off(raw))
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise RequestError(
            f"max_tokens: {body.max_tokens} contradicts max_completion_tokens: {body.max_completion_tokens}; send one",
            field="max_tokens",
        )
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs: has no effect without logprobs: true", field="top_logprobs")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop:
        raise RequestError("stop: an empty string would end every completion at once", field="stop")
    return ChatRequest(
        model=body.model,
        messages=[message.plain() for message in body.messages],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        stop=stop,
        # SDKs may send any 64-bit integer; the generator wants a non-negative one.
        seed=None if body.seed is None else body.seed % 2**63,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
    )


def _drop_what_is_off(raw: dict[Any, Any]) -> dict[str, Any]:
    present = {str(name): value for name, value in raw.items() if value is not None}
    if isinstance(messages := present.get("messages"), list):
        present["messages"] = [_without_nothing(message, index) for index, message in enumerate(messages)]
    for name, off in _OFF.items():
        value = present.get(name)
        if value is not None and not any(type(value) is type(item) and value == item for item in off):
            raise RequestError(f"{name}: {_short(value)} is not served yet; {_advice(off)}", field=name)
    return {name: value for name, value in present.items() if name not in _OFF}


def _without_nothing(message: object, index: int) -> object:
    """A message as SDKs give it back: what an answer left empty (`refusal: null`) is left out, and so is no content."""
    if not isinstance(message, dict):
        return message
    present = {str(name): value for name, value in message.items() if value is not None}
    for name in _MESSAGE_OFF:
        if value := present.pop(name, None):
            field = f"messages.{index}.{name}"
            raise RequestError(f"{field}: {_short(value)} is not served yet", field=field)
    if present.get("role") == "assistant":
        present.setdefault("content", "")
    return present


def _advice(off: tuple[Any, ...]) -> str:
    return f"leave it out or send {off[0]!r}" if off else "leave it out"


def _validate(raw: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(raw)
    except ValidationError as error:
        path, item = _most_precise(error)
        if item["type"] == "extra_forbidden":
            raise RequestError(f"{path}: unknown field", field=path) from error
        if item["type"] == "missing":
            raise RequestError(f"{path}: required, but not given", field=path) from error
        raise RequestError(f"{path}: got {_short(item['input'])}; {item['msg']}", field=path) from error


def _most_precise(error: ValidationError) -> tuple[str, Any]:
    """Returns the first mistake and its path; where branches of a union disagree, that of the one that got furthest."""
    found = [
        (".".join(str(part) for part in item["loc"] if not _is_branch(part)), item)
        for item in error.errors(include_url=False)
    ]
    first = found[0][0]
    return max((entry for entry in found if entry[0].startswith(first)), key=lambda entry: len(entry[0]))


def _is_branch(part: object) -> bool:
    """True for the names that pydantic gives to the branches of a union; they are no part of the field's path."""
    return isinstance(part, str) and (part in ("str", "_Part") or "[" in part)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def answer(request: ChatRequest, result: ChatResult) -> dict[str, Any]:
    """Returns the response body."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": result.text, "refusal": None},
        "logprobs": {"content": _logprobs(result), "refusal": None} if request.logprobs else None,
        "finish_reason": result.finish_reason,
    }
    completion_tokens = len(result.token_ids)
    return {
        "id": result.call_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": result.prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        },
        "system_fingerprint": f"weights-{result.weight_version}",
    }


def _logprobs(result: ChatResult) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for index, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        top = result.top_logprobs[index] if result.top_logprobs else []
        entries.append(_entry(token, logprob) | {"top_logprobs": [_entry(text, value) for text, value in top]})
    return entries


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, _LOWEST_LOGPROB), "bytes": list(token.encode())}
