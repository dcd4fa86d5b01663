"""Chat templates as far as they show in decoded text: turns, reasoning, tools and tool calls.

Known are the markers of ChatML (Qwen, SmolLM, Phi-4, Kimi), Llama 3, Mistral, Gemma, DeepSeek, Phi, GLM and harmony.
"""

import json
import re
from typing import Any, NamedTuple

_TURN = re.compile(
    r"<\|im_start\|>\s*(?P<chatml>\w+)(?:<\|im_sep\|>)?\n?"
    r"|<\|im_(?P<kimi>system|user|assistant)\|>(?:\w*<\|im_middle\|>)?"
    r"|<\|start_header_id\|>\s*(?P<llama>\w+)\s*<\|end_header_id\|>\s*"
    r"|<start_of_turn>\s*(?P<gemma>\w+)\n?"
    r"|<\|turn>\s*(?P<gemma4>\w+)\n?"
    r"|<\|start\|>(?P<harmony>\w+)"
    r"|<\|(?P<phi>system|user|assistant|observation|tool|developer)\|>\n?"
    r"|<｜(?P<deepseek>System|User|Assistant|tool▁outputs▁begin)｜>"
    r"|\[(?P<mistral>/?INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
)
_END = re.compile(
    r"<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<turn\|>|<\|end\|>|<\|return\|>|<\|call\|>|<\|endoftext\|>"
    r"|<｜end▁of▁sentence｜>|</s>|\[/SYSTEM_PROMPT\]|\[/AVAILABLE_TOOLS\]|\[/TOOL_RESULTS\]"
)
_ROLES = {
    "model": "assistant",
    "/INST": "assistant",
    "INST": "user",
    "SYSTEM_PROMPT": "system",
    "developer": "system",
    "AVAILABLE_TOOLS": "tools",
    "TOOL_RESULTS": "tool",
    "ipython": "tool",
    "observation": "tool",
    "functions": "tool",
    "tool▁outputs▁begin": "tool",
}
_REASONING = re.compile(
    r"<(?P<tag>think|thinking|thought|reasoning|seed:think)>.*?(?:</(?P=tag)>|\Z)"
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|<\|channel>thought.*?(?:<channel\|>|\Z)"
    r"|<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>(?:<\|start\|>assistant)?|\Z)",
    re.DOTALL,
)
_REASONING_CLOSED = re.compile(r"\A.*?(?:</think>|\[/THINK\])", re.DOTALL)  # opened by some templates without a trace
_REASONING_MARK = re.compile(
    r"</?(?:think|thinking|thought|reasoning|seed:think)>|\[/?THINK\]|<\|channel>thought|<\|channel\|>analysis"
)
_TOOLS_OPEN = re.compile(
    r"<tools>|<functions>|\[AVAILABLE_TOOLS\]|# Tools\b|namespace functions\b|<\|tool>|\"type\": ?\"function\""
)
_TOOLS_CLOSE = re.compile(r"</tools>|</functions>|\[/AVAILABLE_TOOLS\]|<tool\|>|// namespace functions")
_TOOL_CALL = re.compile(
    r"<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<｜tool▁calls?▁begin｜>|<\|tool_call>|to=functions\."
    r"|<function_call>|<\|tool_calls?_(?:section_)?begin\|>|\{\s*\"name\""
)
_SUMMARY = re.compile(r"\bsummar(?:y|i[sz])|\bcompacted\b|\bcondensed\b|\bran out of context\b", re.IGNORECASE)
_ARGUMENTS = ("arguments", "parameters")


class Turn(NamedTuple):
    """One message as the template wrote it.

    `start` is where its marker begins, `content` where its text does; `closed` tells whether its end is in the text.
    """

    role: str
    start: int
    content: int
    body: str
    closed: bool


def turns(text: str) -> list[Turn]:
    """The turns that begin in the text."""
    marks = list(_TURN.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [_turn(text, mark, end) for mark, end in zip(marks, ends, strict=False)]


def _turn(text: str, mark: re.Match[str], next_mark: int) -> Turn:
    name = str(mark[str(mark.lastgroup)])
    end = _END.search(text, mark.end(), next_mark)
    body = text[mark.end() : end.start() if end else next_mark]
    closed = end is not None or next_mark < len(text)
    return Turn(_ROLES.get(name, name).lower(), mark.start(), mark.end(), body, closed)


def is_reasoning(turn: Turn) -> bool:
    """Whether the turn holds reasoning and nothing else."""
    return turn.body.startswith("<|channel|>analysis")


def without_reasoning(text: str) -> str:
    """The text with its reasoning left out."""
    return _REASONING_CLOSED.sub("", _REASONING.sub("", text))


def has_reasoning(text: str) -> bool:
    """Whether the text holds reasoning. Marks with nothing between them are none."""
    return bare(without_reasoning(text)) != bare(_REASONING_MARK.sub("", text))


def has_reasoning_mark(text: str) -> bool:
    """Whether the text opens or closes reasoning."""
    return _REASONING_MARK.search(text) is not None


def has_tool_call(text: str) -> bool:
    """Whether the text has a tool call in it."""
    return _TOOL_CALL.search(text) is not None


def mentions_summary(text: str) -> bool:
    """Whether the text speaks of itself as a summary."""
    return _SUMMARY.search(text) is not None


def in_tools(text: str, at: int) -> bool:
    """Whether position `at` of a text lies in its list of tools, or directly before it."""
    opened = [mark for mark in _TOOLS_OPEN.finditer(text) if not text[at : mark.start()].strip()]
    return bool(opened) and _TOOLS_CLOSE.search(text, opened[0].start(), at) is None


def bare(text: str) -> str:
    """The text without its white space."""
    return "".join(text.split())


def with_canonical_json(text: str) -> str:
    """The text with each JSON object in it written in one way: keys sorted, no spaces."""
    decoder, parts, at = json.JSONDecoder(), list[str](), 0
    while (opening := text.find("{", at)) >= 0:
        parts.append(text[at:opening])
        try:
            value, at = decoder.raw_decode(text, opening)
            parts.append(json.dumps(_parsed(value), sort_keys=True, separators=(",", ":")))
        except (ValueError, RecursionError):  # a brace that opens no JSON: text like any other
            parts.append("{")
            at = opening + 1
    return "".join(parts) + text[at:]


def _parsed(value: Any) -> Any:
    """Arguments that were written as a string of JSON are what they hold."""
    if isinstance(value, list):
        return [_parsed(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _parsed(_loaded(item) if key in _ARGUMENTS else item) for key, item in value.items()}


def _loaded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
