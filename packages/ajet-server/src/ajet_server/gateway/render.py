"""Messages -> token ids, by the model's own chat template and tokenizer. Never imports torch.

The template runs in Jinja's immutable sandbox with the settings that transformers uses, so that the ids equal those of
`tokenizer.apply_chat_template(..., add_generation_prompt=True)`.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.nodes
import numpy as np
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ajet_core.errors import ConfigError, RequestError
from ajet_server.gateway.encoding import Encoder
from ajet_server.gateway.request import IntIds, Message, Tool
from ajet_server.gateway.segments import Segments
from ajet_server.models.folder import ModelFolder

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_STUMBLES = (
    jinja2.TemplateError,
    TypeError,
    LookupError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template may raise over messages that it was not written for."""


class Cut(NamedTuple):
    """A text and its ids. The cuts of a text put together are the whole text and all its ids."""

    text: str
    ids: IntIds


class ChatRenderer:
    """Renders conversations for one model and turns sampled ids back into text.

    Attributes:
        tokenizer: of the model.
        syntax: the chat template, parsed.
        anchors: special tokens by their text, next to which text may be cut: the ids of what follows such a token do
            not depend on what is before it, nor the other way round.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self.tokenizer = _open_tokenizer(folder)
        names = {name: _text(folder.tokenizer_config.get(name)) for name in _SPECIAL}
        self._names = {name: text for name, text in names.items() if text is not None}
        self.syntax, self._template = _compile(folder.chat_template)
        self.anchors = _anchors(self.tokenizer)
        self._anchors = tuple(self.anchors)
        self._segments = Segments(Encoder(self.tokenizer), self.anchors)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> str:
        """Returns the conversation and the opening of the assistant's turn, as text.

        Args:
            messages: as the template wants them; tool arguments mostly as dicts.
            tools: None and an empty list are the same.

        Raises:
            RequestError: the template refuses these messages (roles that do not alternate, say).
        """
        try:
            return self._template.render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=True, **self._names
            )
        except _STUMBLES as error:
            raise RequestError(
                f"messages: the model's chat template refuses them: {error}", field="messages"
            ) from error

    def encode(self, text: str) -> IntIds:
        """Returns i32[n]: a text as ids, by itself. Text that spells a special token is that token. Errors as `cut`."""
        return self._segments.ids([text])[0]

    def cut(self, text: str, after: str = "") -> list[Cut]:
        """Returns a text that follows the special token `after` in two cuts: the second begins at its last anchor.

        There is one cut if there is no anchor, or nothing before it. `after` itself is in none.

        Raises:
            RequestError: the text holds half a character.
        """
        segments = self._segments.split(text)
        if after and not self.begins_with_anchor(text, 0):
            first, *rest = self._segments.ids([after + segments[0], *segments[1:]])
            ids = [first[1:], *rest]
        else:
            ids = self._segments.ids(segments)
        if len(segments) == 1:
            return [Cut(text, ids[0])]
        return [Cut(text[: -len(segments[-1])], np.concatenate(ids[:-1])), Cut(segments[-1], ids[-1])]

    def begins_with_anchor(self, text: str, start: int) -> bool:
        """Whether an anchor begins at `start`, so that what follows may be tokenized alone."""
        return text.startswith(self._anchors, start)

    def text_with_special(self, token_ids: Sequence[int] | IntIds) -> str:
        """Returns the text of ids, special tokens included."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """Returns the text of one token, special ones included."""
        return self.text_with_special([token_id])


def _open_tokenizer(folder: ModelFolder) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer_file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"model.path: {folder.tokenizer_file} is no tokenizer: {error}", field="model.path"
        ) from error
    # The file may carry settings of how it was trained; a prompt is never cut or filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _anchors(tokenizer: Tokenizer) -> dict[str, int]:
    """The added tokens that split any text in the same way, whatever is around them.

    They are found before a text is normalized or split further, the leftmost first and the longest of several, those
    that ask for a text as it is before all others. So one
    is found wherever it is written unless another added token may reach into it, and both sides are tokenized on their
    own unless it takes spaces from the left (those it takes from the right are behind the cut) or asks for a word
    boundary.
    """
    added = tokenizer.get_added_tokens_decoder()
    if any(token.single_word for token in added.values()):
        return {}
    found_first = tokenizer.normalizer is None
    texts = [token.content for token in added.values()]
    before_others = [token.content for token in added.values() if not token.normalized]
    return {
        token.content: token_id
        for token_id, token in added.items()
        if not token.lstrip
        and (found_first or not token.normalized)
        and not _reached(token.content, texts)
        and not (token.normalized and _ends_in(token.content, before_others))
    }


def _ends_in(text: str, others: list[str]) -> bool:
    """Whether one of these, which are found before it, may overlap the end of this token."""
    return any(other.startswith(text[start:]) for other in others for start in range(1, len(text)))


def _reached(text: str, others: list[str]) -> bool:
    """Whether another token may overlap the beginning of this one, or is a longer form of it."""
    for other in others:
        if other != text and other.startswith(text):
            return True
        for start in range(1, len(other)):
            if other.startswith(text, start) or text.startswith(other[start:]):
                return True
    return False


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant said; for the text it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _compile(source: str) -> tuple[jinja2.nodes.Template, jinja2.Template]:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = {"raise_exception": _raise, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    try:
        syntax, template = environment.parse(source), environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"model.path: the chat template is not valid Jinja: {error}", field="model.path") from error
    template.globals = dict(template.globals)  # every rendering copies them, which a chain of mappings makes slow
    return syntax, template


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
