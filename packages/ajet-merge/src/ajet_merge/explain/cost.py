"""What a break costs: how much of a prompt the earlier path holds already."""

import numpy as np

from .align import Run
from .departure import SAME_CONTENT
from .sides import Finding, Sides

SHORT = 64
"""The end of an answer is looked for in so many tokens, where it is too short to be found by its windows."""


def cost_of(sides: Sides, finding: Finding) -> int:
    """See `Departure.cost`."""
    runs = _runs(sides.runs, finding.again)
    if not runs and finding.cause in SAME_CONTENT:  # too short to be found again by ids
        return _answer(sides) if finding.cause == "stripped_reasoning" else min(sides.prompt.size, sides.theirs.size)
    cost, last = 0, Run(0, 0, 0)
    for run in runs:
        cost += min(run.new - last.new_end, run.gone - last.gone_end) + run.length
        last = run
    return cost


def _runs(by_ids: list[Run], by_text: Run | None) -> list[Run]:
    """What is equal in ids after the place where both are the same again by their text."""
    if by_text is None:
        return by_ids
    after = (_after(run, by_text) for run in by_ids)
    return [by_text, *(run for run in after if run.length > 0)]


def _after(run: Run, first: Run) -> Run:
    """The part of a run that lies after `first` in both."""
    before = max(first.new_end - run.new, first.gone_end - run.gone, 0)
    return Run(run.new + before, run.gone + before, run.length - before)


def _answer(sides: Sides) -> int:
    """How many tokens the prompt goes on with are the last of the earlier call; its reasoning stood before them."""
    most = min(SHORT, sides.prompt.size, sides.theirs.size)
    return next((n for n in range(most, 0, -1) if np.array_equal(sides.prompt[:n], sides.theirs[-n:])), 0)
