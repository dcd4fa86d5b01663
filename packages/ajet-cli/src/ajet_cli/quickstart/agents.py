"""Two agents that talk to an episode through the official OpenAI SDK. They know nothing of training.

The calculator agent asks "What is A + B?", expects the model to call its tool in plain text (`CALC: A + B`), computes,
answers `RESULT: n`, and expects the final sentence. Nothing that the model writes is evaluated: two integers are read.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionMessageParam

GROUPS, GROUP_SIZE = 4, 8
"""A round: so many tasks, each tried so often. One round is one batch."""
_SYSTEM = "To compute, write CALC: and the expression. Then give the result."
_EXAMPLE: "list[ChatCompletionMessageParam]" = [
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "CALC: 2 + 3"},
    {"role": "user", "content": "RESULT: 5"},
    {"role": "assistant", "content": "The answer is 5."},
]
_CALL = re.compile(r"CALC:\s*(\d{1,6})\s*\+\s*(\d{1,6})\s*")
_MAX_TOKENS = 12


@dataclass(frozen=True)
class Rollout:
    """One run of an agent: its reward, and what was said."""

    reward: float
    transcript: list[dict[str, str]]


Agent = Callable[["OpenAI", str, dict[str, Any], int], Rollout]
"""(client, model, task, seed) -> rollout."""


def calculator(client: "OpenAI", model: str, task: dict[str, Any], seed: int) -> Rollout:
    """Two turns: the call, then the answer; a call that cannot be read ends it with 0.

    Reward: 0.2 a well-formed call, 0.3 the right operands, 0.5 the exact final sentence.
    """
    a, b = int(task["a"]), int(task["b"])
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": _SYSTEM},
        *_EXAMPLE,
        {"role": "user", "content": f"What is {a} + {b}?"},
    ]
    call = _say(client, model, messages, seed)
    messages.append({"role": "assistant", "content": call})
    operands = _operands(call)
    if operands is None:
        return Rollout(0.0, _plain(messages[5:]))
    messages.append({"role": "user", "content": f"RESULT: {sum(operands)}"})
    final = _say(client, model, messages, seed + 1)
    messages.append({"role": "assistant", "content": final})
    return Rollout(_calculator_reward(operands, final, a, b), _plain(messages[5:]))


def _operands(call: str) -> tuple[int, int] | None:
    found = _CALL.fullmatch(call.strip())
    return (int(found[1]), int(found[2])) if found else None


def _calculator_reward(operands: tuple[int, int], final: str, a: int, b: int) -> float:
    reward = 0.5 if operands == (a, b) else 0.2
    if final.strip() == f"The answer is {a + b}.":
        reward += 0.5
    return reward


def digits(client: "OpenAI", model: str, task: dict[str, Any], seed: int) -> Rollout:
    """For the micro model, which cannot speak: two turns, rewarded by the share of digits in what it writes."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Write digits, number {task['n']}."}]
    first = _say(client, model, messages, seed)
    messages.append({"role": "assistant", "content": first})
    messages.append({"role": "user", "content": "More."})
    second = _say(client, model, messages, seed + 1)
    messages.append({"role": "assistant", "content": second})
    written = first + second
    share = sum(character in "0123456789" for character in written) / max(len(written), 1)
    return Rollout(share, _plain(messages))


def _say(client: "OpenAI", model: str, messages: "list[ChatCompletionMessageParam]", seed: int) -> str:
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=_MAX_TOKENS, temperature=1.0, seed=seed
    )
    return answer.choices[0].message.content or ""


def _plain(messages: "Sequence[ChatCompletionMessageParam]") -> list[dict[str, str]]:
    return [{"role": str(message["role"]), "content": str(message.get("content"))} for message in messages]


def calculator_tasks(count: int, seed: str) -> list[dict[str, Any]]:
    """Returns `count` sums with operands in 1..30."""
    rng = random.Random(seed)
    return [{"a": rng.randint(1, 30), "b": rng.randint(1, 30)} for _ in range(count)]


def digit_tasks(count: int, seed: str) -> list[dict[str, Any]]:
    """Returns `count` tasks for the micro model."""
    rng = random.Random(seed)
    return [{"n": rng.randint(1, 99)} for _ in range(count)]


AGENTS: dict[str, tuple[Agent, Callable[[int, str], list[dict[str, Any]]]]] = {
    "calculator": (calculator, calculator_tasks),
    "digits": (digits, digit_tasks),
}
"""Name -> (agent, task maker)."""
