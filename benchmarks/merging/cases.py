"""Synthetic, seeded captures of agents at work, and the file that carries them to the peers' processes.

Token ids are random. What matters for merging is which prefixes are equal, and that is set by the case alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]

SYSTEM, USER, ASSISTANT, TOOL = range(4)
_HEADERS = np.array([[1, 2, 3], [1, 4, 3], [1, 5, 3], [1, 6, 3]], np.int32)  # of a message, by role
_FIRST_ID, _LAST_ID = 1_000, 151_000


@dataclass(frozen=True, eq=False)
class Message:
    """A message as the chat template renders it: `tokens` begin with the role's header.

    Messages with equal `text` are the same text, also where their tokens differ.
    """

    role: int
    text: int
    tokens: IntArray


@dataclass(frozen=True, eq=False)
class Captured:
    """One call to the model.

    Attributes:
        prompt: i32[P]: the messages' tokens and an assistant's header.
        completion: i32[C].
        logprobs: f32[C].
        episode: number of the episode.
        messages: the prompt's.
        response: text of the message that the completion was parsed into.
    """

    prompt: IntArray
    completion: IntArray
    logprobs: FloatArray
    episode: int
    messages: tuple[Message, ...]
    response: int


class _Author:
    """Makes up messages and completions; every text is new."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.texts = 0

    def ids(self, size: int) -> IntArray:
        return self._rng.integers(_FIRST_ID, _LAST_ID, size, dtype=np.int32)

    def message(self, role: int, size: int) -> Message:
        self.texts += 1
        return Message(role, self.texts, np.concatenate([_HEADERS[role], self.ids(size - _HEADERS[role].size)]))

    def call(self, messages: list[Message], size: int, episode: int) -> Captured:
        self.texts += 1
        logprobs = -self._rng.exponential(0.5, size).astype(np.float32)
        prompt = np.concatenate([*(message.tokens for message in messages), _HEADERS[ASSISTANT]])
        return Captured(prompt, self.ids(size), logprobs, episode, tuple(messages), self.texts)


Rendering: TypeAlias = Callable[[IntArray], IntArray]
"""What later prompts show where a completion was sampled."""


def _as_sampled(completion: IntArray) -> IntArray:
    return completion


def _drifted(completion: IntArray) -> IntArray:
    """One pair of tokens, three quarters in, has become one other token."""
    at = completion.size * 3 // 4
    return np.concatenate([completion[:at], (completion[at : at + 1] + 1), completion[at + 2 :]])


def _stripped(thinking: int) -> Rendering:
    return lambda completion: completion[thinking:]


def _turn(
    author: _Author, talk: list[Message], completion: int, observation: int, render: Rendering, episode: int
) -> Captured:
    """One call on `talk`, which then grows by the answer as later prompts show it, and by what the tool returned."""
    call = author.call(talk, completion, episode)
    answer = np.concatenate([_HEADERS[ASSISTANT], render(call.completion)])
    talk += [Message(ASSISTANT, call.response, answer), author.message(TOOL, observation)]
    return call


_SYSTEM, _TASK, _COMPLETION, _OBSERVATION, _THINKING = 3_800, 607, 320, 583, 200


def _opening(author: _Author) -> list[Message]:
    return [author.message(SYSTEM, _SYSTEM), author.message(USER, _TASK)]


def _episode(
    author: _Author, talk: list[Message], turns: int, render: Rendering, episode: int = 0, completion: int = _COMPLETION
) -> list[Captured]:
    return [_turn(author, talk, completion, _OBSERVATION, render, episode) for _ in range(turns)]


def _append_only(author: _Author, turns: int) -> list[Captured]:
    return _episode(author, _opening(author), turns, _as_sampled)


def _drift(author: _Author, turns: int) -> list[Captured]:
    return _episode(author, _opening(author), turns, _drifted)


def _stripped_thinking(author: _Author, turns: int) -> list[Captured]:
    size = _THINKING + _COMPLETION
    return _episode(author, _opening(author), turns, _stripped(_THINKING), completion=size)


def _group_of(turns: int) -> "Maker":
    def make(author: _Author, rollouts: int) -> list[Captured]:
        task = _opening(author)
        episodes = [_episode(author, list(task), turns, _as_sampled, episode) for episode in range(rollouts)]
        return [call for episode in episodes for call in episode]

    return make


def _long_chain(author: _Author, turns: int) -> list[Captured]:
    talk = [author.message(SYSTEM, 300), author.message(USER, 197)]
    return [_turn(author, talk, 40, 65, _as_sampled, 0) for _ in range(turns)]


def _siblings(author: _Author, completions: int) -> list[Captured]:
    talk = [author.message(SYSTEM, 6_000), author.message(USER, 2_189)]
    return [author.call(talk, 256, episode) for episode in range(completions)]


def _two_agents(author: _Author, calls: int) -> list[Captured]:
    talks = [_opening(author), _opening(author)]
    return [_turn(author, talks[index % 2], _COMPLETION, _OBSERVATION, _as_sampled, 0) for index in range(calls)]


Maker: TypeAlias = Callable[[_Author, int], list[Captured]]
"""From an author and a size (turns, rollouts or completions) to calls in the order they were made."""


@dataclass(frozen=True)
class Case:
    """One kind of capture at any size.

    Attributes:
        about: what it is.
        make: makes the calls.
        size: the size that is measured.
        quick: the same for `--quick`.
        sizes: four sizes for the exponents, about 130k to 1.1M unmerged tokens in steps of two. Few enough to stay in a
            cache of 4 MB: beyond that the cost of a token is the memory's, of which the exponent would tell.
        grow: makes the calls of these sizes, where it is not `make`.
    """

    about: str
    make: Maker
    size: int
    quick: int
    sizes: tuple[int, int, int, int]
    grow: Maker | None = None


_TURNS = (13, 20, 30, 44)

CASES = {
    "append_only": Case("30 turns, each prompt extends the call before", _append_only, 30, 30, _TURNS),
    "drift": Case("30 turns, later prompts show two tokens of each completion as one other", _drift, 30, 30, _TURNS),
    "stripped_thinking": Case(
        "30 turns, later prompts drop the first 200 tokens of each completion", _stripped_thinking, 30, 30, _TURNS
    ),
    "group": Case("rollouts of 30 turns on one task prompt", _group_of(30), 8, 2, (2, 4, 8, 16), _group_of(8)),
    "long_chain": Case("many short turns", _long_chain, 300, 103, (46, 67, 96, 137)),
    "siblings": Case("many completions of one 8k prompt", _siblings, 1024, 64, (16, 32, 64, 128)),
    "two_agents": Case("two agents take turns", _two_agents, 30, 30, (16, 26, 40, 60)),
}


def grown(name: str, seed: int) -> list[list[Captured]]:
    """The case at each of its four `sizes`."""
    case = CASES[name]
    return [(case.grow or case.make)(_Author(seed), size) for size in case.sizes]


def make_case(name: str, size: int, seed: int) -> list[Captured]:
    """The calls of a case; the same for the same arguments, anywhere."""
    return CASES[name].make(_Author(seed), size)


def _join(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts)


def save(calls: list[Captured], path: Path) -> None:
    """Writes calls for another process."""
    messages = [message for call in calls for message in call.messages]
    np.savez(
        path,
        prompt=_join([call.prompt for call in calls]),
        prompt_size=[call.prompt.size for call in calls],
        completion=_join([call.completion for call in calls]),
        completion_size=[call.completion.size for call in calls],
        logprobs=np.concatenate([call.logprobs for call in calls]),
        episode=[call.episode for call in calls],
        response=[call.response for call in calls],
        messages=[len(call.messages) for call in calls],
        role=[message.role for message in messages],
        text=[message.text for message in messages],
        message_size=[message.tokens.size for message in messages],
    )


def load(path: Path) -> list[Captured]:
    """Reads what `save` wrote."""
    with np.load(path) as file:
        data = dict(file)
    prompts = np.split(data["prompt"], np.cumsum(data["prompt_size"])[:-1])
    cuts = np.cumsum(data["completion_size"])[:-1]
    completions, logprobs = np.split(data["completion"], cuts), np.split(data["logprobs"], cuts)
    calls: list[Captured] = []
    rows = iter(zip(data["role"].tolist(), data["text"].tolist(), data["message_size"].tolist(), strict=True))
    for index, prompt in enumerate(prompts):
        messages: list[Message] = []
        at = 0
        for _ in range(int(data["messages"][index])):
            role, text, size = next(rows)
            messages.append(Message(role, text, prompt[at : at + size]))
            at += size
        episode, response = int(data["episode"][index]), int(data["response"][index])
        calls.append(Captured(prompt, completions[index], logprobs[index], episode, tuple(messages), response))
    return calls
