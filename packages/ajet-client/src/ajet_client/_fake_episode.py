"""An episode of `ajet_client.testing.FakeServer`."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.wire import EpisodeView, FinishEpisode, PrepareEpisode


@dataclass
class FakeEpisode:
    """An episode, as the fake server sees it.

    Attributes:
        id, group_id, task_id, client_id, kind, task, status: as the client sent them and left them.
        reward: None until it is finished; of roles the mean.
        rewards: of roles.
        metrics: the further numbers that were reported.
        reason: why it was aborted or expired.
        group_named: whether the client named the group.
        weights: the weight version that it names.
        source: where its task comes from.
        heartbeats: how often it was renewed.
        calls: the agent's requests to the model.
        roles: of these, in their order; None for one that named none.
        promise: what it is prepared with, if it is.
    """

    id: str
    group_id: str
    task_id: str
    client_id: str
    kind: EpisodeKind
    task: JsonValue
    status: EpisodeStatus = EpisodeStatus.OPEN
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    reason: str | None = None
    group_named: bool = False
    weights: int | None = None
    source: str | None = None
    heartbeats: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    roles: list[str | None] = field(default_factory=list[str | None])
    promise: PrepareEpisode | None = None

    def finish(self, report: FinishEpisode) -> None:
        """Takes the reward."""
        self.status, self.reward, self.rewards = EpisodeStatus.FINISHED, report.reward, dict(report.rewards)
        self.metrics = dict(report.metrics)

    @property
    def open(self) -> bool:
        """Whether it is open."""
        return self.status is EpisodeStatus.OPEN

    def view(self) -> EpisodeView:
        """What the server says of it."""
        return EpisodeView(
            episode_id=self.id,
            attempt_id="att_fake",
            group_id=self.group_id,
            task_id=self.task_id,
            source=self.source,
            kind=self.kind,
            status=self.status,
            client_id=self.client_id,
            reward=self.reward,
            rewards=self.rewards,
            metrics=self.metrics,
            reason=self.reason,
            calls=len(self.calls),
            prompt_tokens=0,
            completion_tokens=0,
            weight_version=self.weights or 0,
            weights=self.weights,
            batch_id=None,
            union_id=None if self.promise is None else self.promise.union_id,
        )
