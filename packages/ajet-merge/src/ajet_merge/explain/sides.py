"""The two calls of a break, from the break on; and what was found out about it."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ajet_merge._arrays import IntArray
from ajet_merge.call import Call

from .align import Run, align
from .departure import Cause, Evidence


@dataclass(frozen=True, eq=False)
class Sides:
    """A call and the earlier call whose path it left after `shared` tokens."""

    call: Call
    earlier: Call
    shared: int

    @cached_property
    def before(self) -> IntArray:
        """The shared tokens."""
        return tokens_of(self.call)[: self.shared]

    @cached_property
    def ours(self) -> IntArray:
        """The call's tokens from the break on, completion included."""
        return tokens_of(self.call)[self.shared :]

    @cached_property
    def prompt(self) -> IntArray:
        """The call's prompt from the break on. Empty if the break lies in its completion."""
        return self.call.prompt_ids[self.shared :]

    @cached_property
    def theirs(self) -> IntArray:
        """The earlier call's tokens from the break on."""
        return tokens_of(self.earlier)[self.shared :]

    @cached_property
    def runs(self) -> list[Run]:
        """Where the call's prompt and the earlier call are the same again."""
        return align(self.prompt, self.theirs)

    @property
    def sampled(self) -> bool:
        """Whether the earlier call sampled its first different token."""
        return self.shared >= self.earlier.prompt_ids.size

    @property
    def new(self) -> IntArray:
        """The call's tokens up to where both are the same again; all of its prompt if they never are."""
        return self.prompt[: self.runs[0].new] if self.runs else self.prompt

    @property
    def gone(self) -> IntArray:
        """The same of the earlier call."""
        return self.theirs[: self.runs[0].gone] if self.runs else self.theirs


class Finding(NamedTuple):
    """A cause, what it was read from, a sentence about it, and where both are the same again if that is known."""

    cause: Cause
    evidence: Evidence
    detail: str
    again: Run | None = None


def tokens_of(call: Call) -> IntArray:
    """i32[n]: prompt + completion."""
    return np.concatenate([call.prompt_ids, call.completion_ids])


def count(number: int, noun: str) -> str:
    """1 token, 2 tokens."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
