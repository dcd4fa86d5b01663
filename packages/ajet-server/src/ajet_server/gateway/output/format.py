"""How one model writes tool calls and thinking, and how conversations are put to its template."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokenizers import Tokenizer

from ajet_core.config import GatewayConfig
from ajet_core.errors import ConfigError, RequestError
from ajet_server.gateway.output.detect import RenderText, Traits, find_traits
from ajet_server.gateway.output.formats import (
    GENERIC,
    NO_REASONING,
    NO_TOOLS,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ToolFormat,
)
from ajet_server.gateway.output.generic import as_plain_messages
from ajet_server.gateway.output.parser import AnswerParser
from ajet_server.gateway.output.reader import OutputReader
from ajet_server.gateway.output.tokens import TokenTexts
from ajet_server.gateway.request import Conversation, Message, NamedTool, Tool

_FIELD = "gateway.tool_format"


class OutputFormat:
    """One per model; holds nothing of any conversation.

    Tools are shown to the model whatever `tool_choice` says, `none` included (as vLLM does); with `none` nothing is
    read as a call. `required` and a name begin the call for the model, by text at the end of the prompt.

    Args:
        config: what the job says.
        render: the model's chat template.
        tokenizer: the model's.
        eos_ids: end a completion, and are never text.

    Attributes:
        name: of the tool syntax.
        reasoning: how thinking is marked.

    Raises:
        ConfigError: the template knows no tools, and the job wants another syntax than the one that can be explained.
    """

    def __init__(
        self, config: GatewayConfig, render: RenderText, tokenizer: Tokenizer, eos_ids: Collection[int]
    ) -> None:
        self._texts = TokenTexts(tokenizer, eos_ids)
        self._traits = find_traits(render, self._texts.has)
        self._off = config.tool_format == "none"
        self._syntax = _choose(config.tool_format, self._traits)
        chosen = config.reasoning_format
        self.reasoning = self._traits.reasoning if chosen == "auto" else REASONING_FORMATS[chosen]

    @property
    def name(self) -> str:
        """Of the tool syntax."""
        return self._syntax.name

    def messages_for_template(self, conversation: Conversation) -> tuple[list[Message], list[Tool] | None]:
        """Returns messages and tools as the chat template takes them.

        Raises:
            RequestError: there are tools, and this model's calls cannot be read.
        """
        self._check(conversation)
        if self._traits.shows_tools or self._off:
            messages = conversation.messages
            if not self._traits.arguments_as_text:
                messages = [_with_dicts(message) for message in messages]
            return messages, list(conversation.tools) or None
        return as_plain_messages(conversation, takes_system=self._traits.takes_system), None

    def thinking_open(self, prompt_text_tail: str) -> bool:
        """Whether the prompt ended inside of thinking. The tail has to hold the opening tag and what follows it."""
        tag = self.reasoning.open
        return bool(tag) and prompt_text_tail.rstrip().endswith(tag)

    def opening(self, conversation: Conversation, prompt_text_tail: str = "") -> str:
        """Returns what has to follow the prompt so that a call is made; "" where none is forced.

        Args:
            conversation: says which call.
            prompt_text_tail: what the prompt ends with. If that is inside of thinking, thinking ends before the call.
        """
        choice = conversation.tool_choice
        if choice in ("auto", "none"):
            return ""
        before = f"\n{self.reasoning.close}\n\n" if self.thinking_open(prompt_text_tail) else ""
        return before + self._syntax.opening(choice.name if isinstance(choice, NamedTool) else None)

    def reader(
        self,
        conversation: Conversation,
        *,
        opening: str,
        thinking: bool,
        stops: tuple[str, ...],
        new_id: Callable[[], str],
    ) -> OutputReader:
        """Returns a reader of one completion.

        Args:
            conversation: that is continued.
            opening: the forced text at the end of the prompt.
            thinking: whether the prompt, before the opening, ended inside of thinking.
            stops: strings that end the text.
            new_id: gives calls their ids.
        """
        reads_calls = bool(conversation.tools) and conversation.tool_choice != "none"
        parser = AnswerParser(
            self._syntax if reads_calls else NO_TOOLS,
            self.reasoning,
            thinking=thinking,
            tools=conversation.tools,
            parallel=conversation.parallel_tool_calls,
            new_id=new_id,
        )
        return OutputReader(self._texts, parser, opening=opening, stops=stops)

    def plain_reader(self, stops: tuple[str, ...]) -> OutputReader:
        """Returns a reader of a completion that no template was put around: everything is text."""
        parser = AnswerParser(NO_TOOLS, NO_REASONING, thinking=False, tools=(), parallel=True, new_id=str)
        return OutputReader(self._texts, parser, opening="", stops=stops)

    def _check(self, conversation: Conversation) -> None:
        if not conversation.tools or self._syntax is not NO_TOOLS:
            return
        why = (
            f"{_FIELD} is 'none'"
            if self._off
            else f"it is unknown how this model's chat template writes calls; set {_FIELD}"
        )
        raise RequestError(f"tools: cannot be used here, since {why}", field="tools")


def _choose(wanted: str, traits: Traits) -> ToolFormat:
    if not traits.shows_tools and wanted not in ("auto", "none", GENERIC.name):
        raise ConfigError(
            f"{_FIELD}: '{wanted}' cannot be used, since the model's chat template knows no tools; use 'auto' or "
            f"'{GENERIC.name}', which are explained to the model, or 'none'",
            field=_FIELD,
        )
    if wanted == "auto":
        return traits.syntax if traits.shows_tools else GENERIC
    return TOOL_FORMATS[wanted]


def _with_dicts(message: Message) -> Message:
    """Arguments as dicts, which is what templates are written for; what is no JSON object stays text."""
    calls: Sequence[dict[str, Any]] = message.get("tool_calls") or ()
    if not calls:
        return message
    return message | {"tool_calls": [call | {"function": _parsed(call["function"])} for call in calls]}


def _parsed(function: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments: object = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function
    return function | {"arguments": arguments} if isinstance(arguments, dict) else function
