"""What every agent is given, and the line that it prints at its end.

    python openai_sdk.py BASE_URL API_KEY MODEL [how]

An agent asks `QUESTIONS` one after the other in one conversation. The model calls `add`, the agent answers the call,
the model says the sum: four calls in all. Only the standard library is used here: each agent brings its framework.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BASE_URL, API_KEY, MODEL, *HOW = sys.argv[1:]
_TASK: dict[str, Any] = json.loads(Path(__file__).with_name("task.json").read_text("utf-8"))
SYSTEM: str = _TASK["system"]
QUESTIONS: list[str] = _TASK["questions"]
TOOL: dict[str, Any] = _TASK["tool"]
OPENAI_TOOL: dict[str, Any] = {"type": "function", "function": TOOL}
TEMPERATURE: float = _TASK["temperature"]
SEED: int = _TASK["seed"]
MAX_TOKENS: int = _TASK["max_tokens"]
SAMPLING: dict[str, Any] = {"temperature": TEMPERATURE, "seed": SEED, "max_tokens": MAX_TOKENS}
MOST_CALLS = 4
"""A question that is not answered after so many calls never will be."""


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@dataclass
class Seen:
    """What an agent saw of the server through its framework.

    Attributes:
        usage: (prompt tokens, completion tokens) of each call.
        tool_calls: (name, arguments) of each.
        answers: what was said to each question.
    """

    usage: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    tool_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    answers: list[str] = field(default_factory=list[str])

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Notes a tool call and returns its result."""
        assert name == TOOL["name"], name
        self.tool_calls.append((name, arguments))
        return add(**arguments)

    def tell(self) -> None:
        """Prints it as one line."""
        print(json.dumps(asdict(self)))
