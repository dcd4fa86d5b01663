"""What is known of the model's text: prompts in, readers of answers out."""

import asyncio
import json
from collections.abc import Callable
from itertools import count

import msgspec
import numpy as np

from ajet_core.config import GatewayConfig
from ajet_core.errors import RequestError
from ajet_server.capture.calls import WholeCall
from ajet_server.gateway.bridge import Bridge
from ajet_server.gateway.continuity import Continuity
from ajet_server.gateway.output import OutputFormat, OutputReader
from ajet_server.gateway.prepared import PastCall, Prepared
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import ChatRequest, Conversation, IntIds, RawPrompt
from ajet_server.models.folder import ModelFolder

_AT_ONCE = 20_000
"""Characters. Where more is new, it is rendered in a thread, so that others are answered meanwhile."""


class Prompt(msgspec.Struct, frozen=True, eq=False):
    """A prompt, ready for the engine.

    Attributes:
        ids: i32[P], all of them.
        parent_id: the call whose prompt and completion it begins with; None without one.
        known_tokens: how many ids those are.
        known_messages: how many messages they stand for.
        opening: text that begins the answer, the end of the prompt; "" mostly.
        thinking: whether the prompt, before the opening, ended inside of thinking.
        prepared: for `Continuity.record`; None for a prompt without messages.
    """

    ids: IntIds
    parent_id: str | None = None
    known_tokens: int = 0
    known_messages: int = 0
    opening: str = ""
    thinking: bool = False
    prepared: Prepared | None = None

    @property
    def engine_ids(self) -> bytes:
        """As the engine takes them: little-endian int32."""
        return self.ids.astype("<i4", copy=False).tobytes()


class Prompts:
    """One per model: its tokenizer, its chat template, its ways of calling tools and of thinking.

    Raises:
        ConfigError: the tokenizer or the template cannot be used, or the job's `gateway` does not fit them.
    """

    def __init__(self, folder: ModelFolder, config: GatewayConfig) -> None:
        self.renderer = ChatRenderer(folder)
        self._format = OutputFormat(config, self.renderer.render, self.renderer.tokenizer, folder.eos_ids)
        self._bridge = Bridge(
            self.renderer, folder.eos_ids, self._format.messages_for_template, self._format.opening, config.history
        )

    @property
    def thinks(self) -> bool:
        """Whether the model marks its thinking."""
        return self._format.reasoning.name != "none"

    def continuity(self) -> Continuity:
        """Returns the memory of a new attempt."""
        return Continuity(self._bridge)

    async def make(self, continuity: Continuity, request: ChatRequest) -> Prompt:
        """Returns the ids of a request's prompt.

        Raises:
            RequestError: the template refuses the messages, or the prompt is empty.
        """
        asked = request.prompt
        if isinstance(asked, RawPrompt):
            return Prompt(self._raw_ids(asked))
        found = continuity.find(asked)
        if found.new < _AT_ONCE:
            return self._prompt(continuity.make(found))
        return self._prompt(await asyncio.to_thread(continuity.make, found))

    def reader(self, request: ChatRequest, prompt: Prompt, call_id: str) -> OutputReader:
        """Returns a reader of one completion. Ids of tool calls follow from the call's, so a retry sees the same."""
        if isinstance(request.prompt, RawPrompt):
            return self._format.plain_reader(request.stop)
        return self._format.reader(
            request.prompt,
            opening=prompt.opening,
            thinking=prompt.thinking,
            stops=request.stop,
            new_id=_numbered(call_id),
        )

    def recorded(self, call: WholeCall, request: ChatRequest) -> Prompt:
        """Returns the prompt of a recorded call, for the request that it answered."""
        ids = np.frombuffer(call.prompt_ids, "<i4").astype(np.int32, copy=False)
        if isinstance(request.prompt, RawPrompt):
            return Prompt(ids)
        opening = call.record.opening
        forced = self.renderer.encode(opening).size if opening else 0
        tail = self.renderer.text_with_special(ids[max(ids.size - forced - _TAIL_TOKENS, 0) : ids.size - forced])
        return Prompt(ids, opening=opening, thinking=self._format.thinking_open(tail))

    def _raw_ids(self, asked: RawPrompt) -> IntIds:
        content = asked.content
        ids = self.renderer.encode(content) if isinstance(content, str) else content
        if not ids.size:
            raise RequestError("prompt: is empty; give at least one token", field="prompt")
        return ids

    def _prompt(self, prepared: Prepared) -> Prompt:
        extended = prepared.how == "extended"
        return Prompt(
            ids=prepared.prompt_ids,
            parent_id=prepared.parent if extended else None,
            known_tokens=prepared.known_tokens if extended else 0,
            known_messages=prepared.messages if extended else 0,
            opening=prepared.forced_text,
            thinking=self._format.thinking_open(prepared.tail),
            prepared=prepared,
        )


_TAIL_TOKENS = 16
"""Enough to hold the tag that opens thinking, and the white space after it."""


def past_call(call: WholeCall) -> PastCall | None:
    """A recorded call as `Continuity.restore` takes it; None for a prompt without messages."""
    if not call.messages:
        return None
    tools = tuple(json.loads(call.record.tools))
    return PastCall(
        call_id=call.record.id,
        conversation=Conversation(call.messages, tools),
        opening=call.record.opening,
        prompt_ids=np.frombuffer(call.prompt_ids, "<i4").astype(np.int32, copy=False),
        completion_ids=np.frombuffer(call.record.completion_ids, "<i4").astype(np.int32, copy=False),
        response=call.response,
    )


def _numbered(call_id: str) -> Callable[[], str]:
    numbers = count()
    return lambda: f"{call_id}_{next(numbers)}"
