"""Synthetic, seeded episodes of agents at work, small enough for two cores, as calls with advantages and loss weights.

Token ids are random. What matters for an update is which prefixes are equal, and that is set by the case alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ajet_merge import Call, Context, episode_mean

IntArray: TypeAlias = NDArray[np.int32]

VOCABULARY = 4096
"""Token ids of the model."""
END = 1
"""The id that ends a turn, sampled or written by the template."""
_HEADERS = {"system": 2, "user": 3, "assistant": 4, "tool": 5}
_FIRST_ID = 8


@dataclass(frozen=True)
class Sizes:
    """Tokens and counts of a case, without the headers and ends of messages.

    Attributes:
        prompt: of the first messages.
        completion: of an answer, its thinking not included. Where it `varies`, the most.
        observation: of what a tool returns.
        turns: calls of an episode.
        rollouts: episodes.
        thinking: of what later prompts drop.
        varies: whether completions differ in length.
    """

    prompt: int
    completion: int
    observation: int
    turns: int
    rollouts: int = 1
    thinking: int = 0
    varies: bool = False

    def completion_of(self, rng: np.random.Generator) -> int:
        """Tokens of one completion: all, or between half and all of them."""
        answer = int(rng.integers(self.completion // 2, self.completion + 1)) if self.varies else self.completion
        return self.thinking + answer


@dataclass(frozen=True, eq=False)
class Episodes:
    """The calls of a case, and their messages, in the order they were made."""

    calls: list[Call]
    contexts: list[Context]


@dataclass(frozen=True, eq=False)
class _Message:
    """A message as a template renders it: a header, the body, the end of the turn."""

    role: str
    text: str
    tokens: IntArray


Rendering: TypeAlias = Callable[[IntArray], IntArray]
"""What later prompts show of a completion."""


def _as_sampled(completion: IntArray) -> IntArray:
    return completion


def _drifted(completion: IntArray) -> IntArray:
    """One token, three quarters in, is another one."""
    changed = completion.copy()
    at = changed.size * 3 // 4
    changed[at] = _FIRST_ID + (changed[at] + 1) % (VOCABULARY - _FIRST_ID)
    return changed


def _without(thinking: int) -> Rendering:
    return lambda completion: completion[thinking:]


@dataclass
class _Author:
    """Makes up messages and calls; every text is new."""

    rng: np.random.Generator
    made: Episodes = field(default_factory=lambda: Episodes([], []))
    texts: int = 0

    def ids(self, size: int) -> IntArray:
        return self.rng.integers(_FIRST_ID, VOCABULARY, size, dtype=np.int32)

    def message(self, role: str, body: IntArray) -> _Message:
        self.texts += 1
        return _Message(role, f"text {self.texts}", _ints([_HEADERS[role], *body, END]))

    def call(self, talk: list[_Message], size: int, episode: int, advantage: float) -> tuple[Call, str]:
        """One call on `talk`: the call, and the text of its answer."""
        self.texts += 1
        prompt = np.concatenate([*(message.tokens for message in talk), _ints([_HEADERS["assistant"]])])
        completion = _ints([*self.ids(size), END])
        # A random model gives all tokens about the same probability. Spread so that some ratios are clipped.
        logprobs = (self.rng.normal(-log(VOCABULARY), 0.2, completion.size)).astype(np.float32)
        name, text = f"{episode}", f"text {self.texts}"
        call = Call(prompt, completion, logprobs, advantage=advantage, attempt_id=name, episode_id=name)
        self.made.calls.append(call)
        self.made.contexts.append(_context(talk, text))
        return call, text

    def episode(self, opening: list[_Message], sizes: Sizes, render: Rendering, episode: int) -> None:
        talk = list(opening)
        for _ in range(sizes.turns):
            advantage = float(self.rng.normal())
            call, text = self.call(talk, sizes.completion_of(self.rng), episode, advantage)
            shown = np.concatenate([_ints([_HEADERS["assistant"]]), render(call.completion_ids)])
            talk += [_Message("assistant", text, shown), self.message("tool", self.ids(sizes.observation))]


def _ints(values: list[int]) -> IntArray:
    return np.array(values, np.int32)


def _context(talk: list[_Message], answer: str) -> Context:
    return Context(
        messages=tuple({"role": message.role, "content": message.text} for message in talk),
        response={"role": "assistant", "content": answer},
        message_ends=np.cumsum([message.tokens.size for message in talk], dtype=np.int32),
    )


@dataclass(frozen=True)
class Case:
    """One kind of episodes.

    Attributes:
        about: what it is.
        size: the sizes that are measured.
        quick: the same for `--quick`.
        render: what later prompts show of a completion.
    """

    about: str
    size: Sizes
    quick: Sizes
    render: Callable[[Sizes], Rendering]


_TURNS, _FEW_TOKENS = (
    Sizes(prompt=512, completion=32, observation=64, turns=20),
    Sizes(prompt=192, completion=12, observation=24, turns=20),
)

CASES = {
    "append_only": Case("20 turns, each prompt extends the call before", _TURNS, _FEW_TOKENS, lambda _: _as_sampled),
    "drift": Case(
        "20 turns, later prompts show one token of each completion as another", _TURNS, _FEW_TOKENS, lambda _: _drifted
    ),
    "stripped_thinking": Case(
        "20 turns, later prompts drop the thinking of each completion",
        Sizes(prompt=512, completion=24, observation=72, turns=20, thinking=32),
        Sizes(prompt=192, completion=8, observation=28, turns=20, thinking=12),
        lambda sizes: _without(sizes.thinking),
    ),
    "group": Case(
        "8 rollouts of 3 turns on one long prompt",
        Sizes(prompt=1024, completion=48, observation=48, turns=3, rollouts=8, varies=True),
        Sizes(prompt=384, completion=24, observation=24, turns=3, rollouts=8, varies=True),
        lambda _: _as_sampled,
    ),
    "single_turn": Case(
        "8 completions of one prompt, a group of GRPO",
        Sizes(prompt=256, completion=384, observation=1, turns=1, rollouts=8, varies=True),
        Sizes(prompt=128, completion=192, observation=1, turns=1, rollouts=8, varies=True),
        lambda _: _as_sampled,
    ),
}
TINY = Sizes(prompt=32, completion=8, observation=8, turns=2, rollouts=2, thinking=4)
"""For warming up."""


def sizes_of(name: str, quick: bool) -> Sizes:
    """The sizes of a case."""
    return CASES[name].quick if quick else CASES[name].size


def exact_sizes(name: str, quick: bool) -> Sizes:
    """The sizes on which gradients are compared: those of `--quick`, of which it takes only the first turns itself."""
    sizes = CASES[name].quick
    return replace(sizes, turns=min(sizes.turns, 4)) if quick else sizes


def make_episodes(name: str, sizes: Sizes, seed: int) -> Episodes:
    """The calls of a case, each token's weight the mean within its episode; the same for the same arguments."""
    author = _Author(np.random.default_rng(seed))
    opening = [
        author.message("system", author.ids(sizes.prompt * 3 // 4)),
        author.message("user", author.ids(sizes.prompt - sizes.prompt * 3 // 4)),
    ]
    for episode in range(sizes.rollouts):
        author.episode(opening, sizes, CASES[name].render(sizes), episode)
    weights = episode_mean(author.made.calls)
    calls = [replace(call, weight=weight_C) for call, weight_C in zip(author.made.calls, weights, strict=True)]
    return Episodes(calls, author.made.contexts)
