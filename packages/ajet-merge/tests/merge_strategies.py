"""Random calls that overlap a lot, and slow, obvious versions of what the package computes."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from ajet_merge import Call, Forest

Key = tuple[str, tuple[int, ...]]


def sequence(call: Call) -> tuple[int, ...]:
    return (*call.prompt_ids.tolist(), *call.completion_ids.tolist())


def prefixes(calls: Sequence[Call]) -> set[Key]:
    """All distinct non-empty prefixes, per compat_key: the tokens of the forest."""
    return {(c.compat_key, sequence(c)[:n]) for c in calls for n in range(1, len(c) + 1)}


def maximal(calls: Sequence[Call]) -> set[Key]:
    """The sequences that are no proper prefix of another: the leaves."""
    whole = {(c.compat_key, sequence(c)) for c in calls}
    inner = {(key, seq[:n]) for key, seq in whole for n in range(len(seq))}
    return whole - inner


def trained_positions(call: Call) -> set[int]:
    return {call.prompt_ids.size + int(t) for t in np.flatnonzero(call.trained)}


def token_keys(forest: Forest) -> list[Key]:
    """What each forest token stands for: its compat_key and the sequence up to it."""
    keys: list[Key] = [("", ())] * forest.num_tokens
    for index, call in enumerate(forest.calls):
        for n, token in enumerate(forest.path(index).tolist(), 1):
            keys[token] = (call.compat_key, sequence(call)[:n])
    return keys


@st.composite
def calls(draw: st.DrawFn, masks: bool = True, min_size: int = 1) -> list[Call]:
    """Conversations over a tiny vocabulary: calls extend, repeat, fork from and stop short of earlier ones."""
    made: list[Call] = []
    tokens = st.lists(st.integers(0, 2), max_size=5)
    for index in range(draw(st.integers(min_size, 9))):
        base: tuple[int, ...] = ()
        if made and draw(st.booleans()):
            base = sequence(draw(st.sampled_from(made)))
            base = base[: draw(st.integers(0, len(base)))]
        prompt, completion = [*base, *draw(tokens)], draw(tokens)
        if not prompt and not completion:
            prompt = [0]
        mask = draw(st.lists(st.booleans(), min_size=len(completion), max_size=len(completion))) if masks else None
        numbers = st.floats(-4, 0, width=32)
        made.append(
            Call(
                prompt,
                completion,
                logprobs=draw(st.lists(numbers, min_size=len(completion), max_size=len(completion))),
                mask=mask,
                advantage=draw(numbers),
                weight=draw(st.sampled_from([0.0, 0.25, 1.0])),
                call_id=f"c{index}",
                episode_id=f"e{index % 3}",
                group_id=f"g{index % 2}",
                compat_key=draw(st.sampled_from(["", "", "", "adapter"])),
            )
        )
    return made
