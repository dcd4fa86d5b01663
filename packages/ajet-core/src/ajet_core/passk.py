"""pass@k: how likely one of k attempts at a task succeeds (Chen et al. 2021, arXiv 2107.03374)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class PassAt:
    """pass@k over tasks.

    Attributes:
        k: attempts.
        value: mean over the tasks; None if no task has k attempts.
        tasks: how many tasks it is the mean of.
        short: tasks with fewer than k attempts, which are left out: there is no unbiased estimate for them.
    """

    k: int
    value: float | None
    tasks: int
    short: int

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.4g}"
        left_out = f", {self.short} left out" if self.short else ""
        return f"pass@{self.k} {value} ({self.tasks} task{'' if self.tasks == 1 else 's'}{left_out})"


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The unbiased estimate 1 - C(n - c, k) / C(n, k) from n attempts with c successes, as a product of n - c < i <= n.

    Raises:
        ValueError: unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"pass@{k} of {attempts} attempts with {successes} successes cannot be")
    if attempts - successes < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(attempts - successes + 1, attempts + 1))


def mean_pass_at(tasks: Iterable[tuple[int, int]], k: int) -> PassAt:
    """Returns the mean over tasks, each given as (attempts, successes). Raises `ValueError` for k < 1."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    counts = list(tasks)
    values = [pass_at_k(attempts, successes, k) for attempts, successes in counts if attempts >= k]
    return PassAt(k, sum(values) / len(values) if values else None, len(values), len(counts) - len(values))


def powers_of_two(most: int) -> list[int]:
    """Returns 1, 2, 4, ... as far as `most`."""
    return [1 << exponent for exponent in range(most.bit_length())]
