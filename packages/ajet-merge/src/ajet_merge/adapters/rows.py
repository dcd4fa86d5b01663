"""Timelines split into prompt and response, as stacks without tree attention take them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ajet_merge._arguments import integer
from ajet_merge._arrays import FloatArray, IntArray, MaskArray
from ajet_merge.call import Call
from ajet_merge.errors import MergeError
from ajet_merge.forest import Forest
from ajet_merge.timelines import Timeline


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """A timeline of n tokens that trains something, cut in two before the first token it trains.

    The response holds R = n - `start` tokens: everything that is trained, and whatever was fed in between (tool
    results, user turns), which `loss_mask` leaves out.

    Attributes:
        timeline: the row itself; `timeline.calls` are indices into `Forest.calls`.
        start: P, the length of the prompt and the position of the first trained token; 1 <= P < n.
        name: the row's calls by id, for errors.
    """

    timeline: Timeline
    start: int
    name: str

    @property
    def prompt_ids(self) -> IntArray:
        """i32[P]."""
        return self.timeline.tokens[: self.start]

    @property
    def response_ids(self) -> IntArray:
        """i32[R]."""
        return self.timeline.tokens[self.start :]

    @property
    def loss_mask(self) -> MaskArray:
        """u8[R], 1 where the response's token is trained; the first always is."""
        return self.timeline.mask[self.start :]

    @property
    def logprobs(self) -> FloatArray:
        """f32[R], the rollout's logprob of each trained token, 0 elsewhere."""
        return self.timeline.logprobs[self.start :]

    @property
    def advantages(self) -> FloatArray:
        """f32[R], advantage * weight of each trained token, 0 elsewhere."""
        return (self.timeline.advantage * self.timeline.weight)[self.start :]


def trained_rows(forest: Forest, max_length: int | None = None) -> list[Row]:
    """The timelines that train at least one token, in the order of `Forest.timelines()`.

    Args:
        forest: the merged calls.
        max_length: most tokens in a row; None sets no limit.

    Raises:
        MergeError: a row is longer than `max_length` (rows are never truncated), or that is no integer of at least 1.
    """
    if max_length is not None:
        integer("max_length", max_length, 1)
    rows = [
        Row(timeline, int(timeline.positions[0]), name_calls(forest.calls, timeline.calls))
        for timeline in forest.timelines()
        if timeline.positions.size
    ]
    if max_length is not None:
        for row in rows:
            check_length(row, "tokens", row.timeline.tokens.size, "max_length", max_length)
    return rows


def name_calls(calls: Sequence[Call], indices: Sequence[int]) -> str:
    """The calls by index and id, the first few of them."""
    shown = ", ".join(f"{index} ({calls[index].call_id!r})" for index in indices[:4])
    more = f" and {len(indices) - 4} more" if len(indices) > 4 else ""
    return f"row of call{'s' if len(indices) > 1 else ''} {shown}{more}"


def check_length(row: Row, what: str, length: int, limit_name: str, limit: int) -> None:
    """Refuse a row that does not fit."""
    if length > limit:
        raise MergeError(
            f"{row.name}: {length} {what} do not fit {limit_name}={limit}; raise {limit_name} to at least {length}, "
            "or leave the calls out (rows are never truncated)"
        )


def refuse_inexact(rows: Sequence[Row], remedy: str) -> None:
    """Refuse rows whose rollout logprobs belong to another context, where they would be denominators of ratios.

    Raises:
        MergeError: a row has `context_exact` False.
    """
    for row in rows:
        if not row.timeline.context_exact:
            raise MergeError(
                f"{row.name}: context_exact is False, so its rollout logprobs are those of another context and must "
                f"not be the denominator of a ratio; {remedy}"
            )
