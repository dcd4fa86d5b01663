"""What a run is asked for and what it reports; shared by both runners."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ajet_client.bodies import kind_of
from ajet_client.tasks import Task, TaskLike, as_task, task_name
from ajet_core.episode import EpisodeKind
from ajet_core.errors import RequestError
from ajet_core.ids import new_group_id
from ajet_core.passk import PassAt, mean_pass_at, powers_of_two


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """How one episode of a run ended.

    Attributes:
        task: what it was about.
        group_id: its group.
        episode_id: id of the last attempt.
        kind: `train` or `eval`.
        reward: None if every attempt failed.
        metrics: the further numbers that were reported.
        attempts: how many attempts it took.
        error: type and text of the last attempt's error; None if it succeeded.
        seconds: from the first opening to the end of the last attempt, waits included.
        group_named: whether the run made the group. If the episode failed, its group is left short of it.
    """

    task: Task
    group_id: str
    episode_id: str
    kind: EpisodeKind
    reward: float | None
    metrics: dict[str, float]
    attempts: int
    error: str | None
    seconds: float
    group_named: bool = False


@dataclass
class RunReport:
    """Counts, sums and records of a run; grows while it goes on.

    Attributes:
        finished: episodes with a reward.
        failed: episodes given up after their last attempt.
        attempts: attempts of all episodes together.
        records: the latest ones, up to the run's `keep_records`.
        short_groups: how many episodes each group of the run lacks because they failed. An update does not count such a
            group of train episodes until somebody fills it; see `Swarm.run`.
    """

    records: deque[EpisodeRecord] = field(default_factory=deque[EpisodeRecord])
    finished: int = 0
    failed: int = 0
    attempts: int = 0
    short_groups: dict[str, int] = field(default_factory=dict[str, int])
    _reward_sum: float = 0.0
    _metrics: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])

    @property
    def reward_mean(self) -> float | None:
        """Mean over the finished episodes; None if there are none."""
        return self._reward_sum / self.finished if self.finished else None

    @property
    def metric_means(self) -> dict[str, float]:
        """Mean of each metric over the episodes that reported it."""
        return {name: total / count for name, (count, total) in self._metrics.items()}

    def rewards_by_group(self) -> dict[str, list[float]]:
        """Returns the rewards of each group, from the records that are kept."""
        groups: dict[str, list[float]] = {}
        for record in self.records:
            if record.reward is not None:
                groups.setdefault(record.group_id, []).append(record.reward)
        return groups

    def pass_at(self, k: int, success: float = 1.0) -> PassAt:
        """Returns pass@k: how likely one of k episodes of a task succeeds, mean over the tasks (arXiv 2107.03374).

        An episode that failed has no reward and does not count, least of all as one without success; a task that is
        left with fewer than k episodes is left out, and `short` says how many were.

        Args:
            k: episodes.
            success: the least reward that is a success.

        Raises:
            RequestError: k is less than 1, or records were dropped (`keep_records`).
        """
        if k < 1:
            raise RequestError(f"k must be at least 1, got {k}", field="k")
        return mean_pass_at(self._successes(success), k)

    def passes(self, success: float = 1.0) -> list[PassAt]:
        """Returns pass@k for k = 1, 2, 4, ... as far as a task has episodes; see `pass_at`."""
        counts = self._successes(success)
        return [mean_pass_at(counts, k) for k in powers_of_two(max((n for n, _ in counts), default=0))]

    def _successes(self, success: float) -> list[tuple[int, int]]:
        """For each task: finished episodes, and how many of them succeeded."""
        if len(self.records) < self.finished + self.failed:
            raise RequestError(
                f"keep_records: only {len(self.records)} of {self.finished + self.failed} records were kept, and "
                "pass@k needs all; leave it out",
                field="keep_records",
            )
        counts: dict[str, tuple[int, int]] = {}
        for record in self.records:
            attempts, successes = counts.setdefault(task_name(record.task), (0, 0))
            if record.reward is not None:
                counts[task_name(record.task)] = (attempts + 1, successes + (record.reward >= success))
        return list(counts.values())

    def add(self, record: EpisodeRecord) -> None:
        """Counts one more episode."""
        self.records.append(record)
        self.attempts += record.attempts
        if record.reward is None:
            self.failed += 1
            if record.group_named:
                self.short_groups[record.group_id] = self.short_groups.get(record.group_id, 0) + 1
            return
        self.finished += 1
        self._reward_sum += record.reward
        for name, value in record.metrics.items():
            count, total = self._metrics.get(name, (0, 0.0))
            self._metrics[name] = (count + 1, total + value)

    def __str__(self) -> str:
        mean = "none" if self.reward_mean is None else f"{self.reward_mean:.4g}"
        text = f"{self.finished} finished, {self.failed} failed, {self.attempts} attempts, mean reward {mean}"
        short = len(self.short_groups)
        return f"{text}, {short} group{'s' if short > 1 else ''} left short" if short else text


@dataclass(frozen=True)
class RunSettings:
    """The arguments of `run` that are checked without the server; see `Swarm.run`."""

    concurrency: int
    kind: str
    attempts: int
    wait_s: float
    progress: bool
    on_result: Callable[[EpisodeRecord], object] | None
    keep_records: int | None
    weights: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if kind_of(self.kind) is EpisodeKind.TRAIN and self.weights is not None:
            raise RequestError("weights: only a run of kind 'eval' may name its weights", field="weights")
        for name in ("concurrency", "attempts"):
            if (value := getattr(self, name)) < 1:
                raise RequestError(f"{name} must be at least 1, got {value}", field=name)


def new_report(settings: RunSettings) -> RunReport:
    """Returns an empty report."""
    return RunReport(deque(maxlen=settings.keep_records))


@dataclass(frozen=True, slots=True)
class Slot:
    """One episode to be had: a task, and the group it belongs to (None: the server chooses)."""

    task: Task
    group_id: str | None


def slots_of(item: TaskLike, group_size: int) -> Iterator[Slot]:
    """Yields the slots of one task. One group id serves them all; an episode alone joins a group that needs it."""
    task, group_id = as_task(item), new_group_id() if group_size > 1 else None
    for _ in range(group_size):
        yield Slot(task, group_id)


def slots(items: Iterable[TaskLike], group_size: int) -> Iterator[Slot]:
    """Yields the slots of all tasks, reading no task before its first slot is asked for."""
    for item in items:
        yield from slots_of(item, group_size)
