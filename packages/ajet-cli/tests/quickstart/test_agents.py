from types import SimpleNamespace
from typing import Any

import pytest

from ajet_cli.quickstart.agents import AGENTS, calculator, digits


class _ScriptedModel:
    """Stands in for `OpenAI`: says what it was told to, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    def create(self, **request: Any) -> Any:
        self.asked.append({**request, "messages": list(request["messages"])})
        message = SimpleNamespace(content=self._answers.pop(0))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


@pytest.mark.parametrize(
    ("call", "final", "reward"),
    [
        ("CALC: 7 + 9", "The answer is 16.", 1.0),
        ("CALC: 7 + 9\n", "The answer is 16. ", 1.0),
        ("CALC: 7 + 9", "It is 16.", 0.5),
        ("CALC: 9 + 7", "The answer is 16.", 0.7),
        ("CALC: 1 + 2", "The answer is 3.", 0.2),
        ("CALC: 8 + 8", "The answer is 16.", 0.7),
        ("nine plus seven", None, 0.0),
        ("CALC: 9**9**9", None, 0.0),
        ("CALC: __import__('os').abort()", None, 0.0),
        ("CALC: 7 + 9999999999999", None, 0.0),
        ("", None, 0.0),
    ],
)
def test_the_reward_of_the_calculator(call: str, final: str | None, reward: float) -> None:
    model = _ScriptedModel(call, *([] if final is None else [final]))
    rollout = calculator(model, "m", {"a": 7, "b": 9}, seed=5)  # type: ignore[arg-type]
    assert rollout.reward == pytest.approx(reward)
    turns = 2 if final is None else 4
    assert [turn["role"] for turn in rollout.transcript] == ["user", "assistant", "user", "assistant"][:turns]


def test_the_calculator_computes_what_the_model_called() -> None:
    model = _ScriptedModel("CALC: 20 + 22", "x")
    calculator(model, "m", {"a": 1, "b": 2}, seed=5)  # type: ignore[arg-type]
    assert model.asked[1]["messages"][-1] == {"role": "user", "content": "RESULT: 42"}
    assert [request["seed"] for request in model.asked] == [5, 6]
    assert model.asked[1]["messages"][: len(model.asked[0]["messages"])] == model.asked[0]["messages"]


def test_the_reward_of_digits() -> None:
    assert digits(_ScriptedModel("12ab", "3456"), "m", {"n": 1}, 0).reward == pytest.approx(6 / 8)  # type: ignore[arg-type]
    assert digits(_ScriptedModel("", ""), "m", {"n": 1}, 0).reward == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_tasks_follow_their_seed(name: str) -> None:
    _, make = AGENTS[name]
    assert make(5, "1/0") == make(5, "1/0")
    assert make(5, "1/0") != make(5, "1/1")
    assert len(make(5, "1/0")) == 5
