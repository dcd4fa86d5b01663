"""What Chat Completions and Completions are asked alike: how to sample, and how to answer."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import Body, Text
from ajet_server.gateway.request import ChatRequest, Conversation, RawPrompt

OFF: dict[str, tuple[Any, ...]] = {"presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0)}
"""Fields of both that are not served, with the values that ask for nothing."""


class Parsed(msgspec.Struct, frozen=True):
    """A body that was understood.

    Attributes:
        request: what is asked.
        stream: whether the answer is sent as it grows.
        include_usage: whether the last chunk of a stream counts tokens.
    """

    request: ChatRequest
    stream: bool
    include_usage: bool


class Strict(Body):
    """A part of a body whose values have the type that the API says: `"5"` is no number."""

    model_config = ConfigDict(strict=True)


class _StreamOptions(Strict):
    include_usage: bool | None = None
    # True asks for random padding, against those who guess text from the sizes of what is sent.
    include_obfuscation: Literal[False] | None = None


_TokenId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]


class Options(Strict):
    """Fields that both dialects have, by the same names and bounds."""

    model: Text
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop: Text | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    logit_bias: dict[_TokenId, _Bias] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: Text | None = None
    return_token_ids: bool | None = None


def parsed(body: Options, request: ChatRequest) -> Parsed:
    """Adds how to answer to what is asked. Raises `RequestError` for options of a stream without a stream."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options: has no effect without stream: true", field="stream_options")
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Parsed(request, bool(body.stream), include_usage)


def request(body: Options, prompt: Conversation | RawPrompt, max_tokens: int | None) -> ChatRequest:
    """What both dialects ask alike, as a request.

    Raises:
        RequestError: an empty stop string.
    """
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop:
        raise RequestError("stop: an empty string would end every completion at once", field="stop")
    return ChatRequest(
        model=body.model,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=1.0 if body.top_p is None else float(body.top_p),
        top_k=body.top_k or 0,
        stop=stop,
        # SDKs may send any 64-bit integer; the generator wants a non-negative one.
        seed=None if body.seed is None else body.seed % 2**63,
        n=body.n or 1,
        logit_bias=tuple((int(token), float(bias)) for token, bias in (body.logit_bias or {}).items() if bias),
        return_token_ids=bool(body.return_token_ids),
        labels=labels(user=body.user),
    )


def labels(**given: object) -> dict[str, Any]:
    """What the caller wants recorded, without what was not given."""
    return {name: value for name, value in given.items() if value}
