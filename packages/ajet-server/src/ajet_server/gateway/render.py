"""Messages -> token ids, by the model's own chat template and tokenizer. Never imports torch.

The template runs in Jinja's immutable sandbox with the settings that transformers uses, so that the ids equal those of
`tokenizer.apply_chat_template(..., add_generation_prompt=True)`.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
import numpy as np
import numpy.typing as npt
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ajet_core.errors import ConfigError, RequestError
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


class ChatRenderer:
    """Renders conversations for one model and turns sampled ids back into text."""

    def __init__(self, folder: ModelFolder) -> None:
        self._tokenizer = _open_tokenizer(folder)
        names = {name: _text(folder.tokenizer_config.get(name)) for name in _SPECIAL}
        self._names = {name: text for name, text in names.items() if text is not None}
        self._template = _compile(folder.chat_template)

    def prompt_ids(self, messages: Sequence[dict[str, Any]]) -> npt.NDArray[np.int32]:
        """Returns i32[P]: the conversation and the opening of the assistant's turn.

        Raises:
            RequestError: the template refuses these messages (roles that do not alternate, say).
        """
        try:
            text = self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._names
            )
        except _STUMBLES as error:
            raise RequestError(
                f"messages: the model's chat template refuses them: {error}", field="messages"
            ) from error
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32)

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of sampled ids without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """Returns the text of one token, special ones included."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


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


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = {"raise_exception": _raise, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"model.path: the chat template is not valid Jinja: {error}", field="model.path") from error


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
