"""Conversations, a chat template and a tokenizer, as small as they can be, for the tests of the explainer."""

import json
import re
from typing import Any

from ajet_merge import Call
from ajet_merge.messages import Context

Messages = list[dict[str, Any]]
PIECE = re.compile(r"<\|[^|>]*\|>|<｜[^｜]*｜>|</?\w+>|\[/?[A-Z_]+\]| ?[^\W_]+|.", re.DOTALL)
SPECIAL = re.compile(r"<\|[^|>]*\|>|<｜[^｜]*｜>|\[/?[A-Z_]+\]")


class Words:
    """Words with the space before them, and marks. Like most tokenizers it hides special tokens unless told not to."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        return [self.token(piece) for piece in PIECE.findall(text)]

    def letters(self, text: str) -> list[int]:
        """The same text in one token for each letter."""
        return [self.token(letter) for letter in text]

    def token(self, piece: str) -> int:
        if piece not in self.ids:
            self.ids[piece] = len(self.texts)
            self.texts.append(piece)
        return self.ids[piece]

    def decode(self, token_ids: list[int], /, skip_special_tokens: bool = True) -> str:
        pieces = [self.texts[token] for token in token_ids]
        return "".join(piece for piece in pieces if not (skip_special_tokens and SPECIAL.fullmatch(piece)))


def body(message: dict[str, Any], thinks: bool = True) -> str:
    parts = (
        [f"<think>\n{message['reasoning_content']}\n</think>\n\n"] if thinks and "reasoning_content" in message else []
    )
    parts.append(message.get("content") or "")
    for called in message.get("tool_calls", ()):
        name, arguments = called["function"]["name"], called["function"]["arguments"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>')
    return "".join(parts)


def chatml(messages: Messages, tools: Messages | None = None, thinks: bool = True) -> str:
    """ChatML as Qwen writes it: tools in the system prompt."""
    turns = [(message["role"], body(message, thinks)) for message in messages]
    if tools:
        listed = "\n".join(json.dumps(tool) for tool in tools)
        turns[0] = ("system", f"{turns[0][1]}\n\n# Tools\n\nCall them if you need to.\n<tools>\n{listed}\n</tools>")
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)


def made(
    words: Words,
    messages: Messages,
    response: dict[str, Any],
    tools: Messages | None = None,
    thinks: bool = True,
    sampled: list[int] | None = None,
    **ids: str,
) -> tuple[Call, Context]:
    """A call and its context. `thinks`: whether the template keeps reasoning; `sampled`: the completion's tokens."""
    prompt = words.encode(chatml(messages, tools, thinks) + "<|im_start|>assistant\n")
    completion = sampled or words.encode(body(response) + "<|im_end|>")
    call = Call(prompt, completion, [-1.0] * len(completion), **ids)
    return call, Context(tuple(messages), response, tuple(tools or ()))
