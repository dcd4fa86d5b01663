"""What a server tells those who watch it: `GET /api/events`, one server-sent event each, kept in the ledger.

Each event has an id that grows, so a watcher that reconnects with `Last-Event-ID` misses nothing.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ajet_core.episode import EpisodeKind


class EngineState(StrEnum):
    """`offline -> booting -> rolling -> draining -> updating -> syncing -> rolling`, and `failed` with a cause."""

    OFFLINE = "offline"
    BOOTING = "booting"
    ROLLING = "rolling"
    DRAINING = "draining"
    UPDATING = "updating"
    SYNCING = "syncing"
    FAILED = "failed"


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class StepReport(_Model):
    """Figures of one update."""

    step: int
    """Counts from 1."""
    batch_id: str
    weight_version: int
    """The version that the step produced."""
    episodes: int
    groups: int
    calls: int
    completion_tokens_mean: float = 0.0
    """Sampled tokens of a call."""
    completion_tokens_max: int = 0
    call_tokens_max: int = 0
    """Prompt + completion of the longest call."""
    reward_mean: float
    reward_std: float
    reward_min: float
    reward_max: float
    advantage_abs_mean: float
    loss: float
    grad_norm: float
    """Before clipping."""
    clip_fraction: float
    """Share of occurrences whose ratio was clipped."""
    approx_kl: float
    """Schulman's k3 estimate of KL(old || new) over the occurrences: how far engine and trainer are apart."""
    ratio_min: float
    ratio_max: float
    ratio_mean: float = 1.0
    ratio_q01: float = 1.0
    """The ratio that 1% of the occurrences are at most."""
    ratio_q10: float = 1.0
    ratio_q50: float = 1.0
    ratio_q90: float = 1.0
    ratio_q99: float = 1.0
    policy_loss: float = 0.0
    """The loss without the KL penalty, the entropy bonus and the value loss."""
    clip_fraction_low: float = 0.0
    clip_fraction_high: float = 0.0
    reference_kl: float = 0.0
    """Mean estimate of KL(model || reference), nats; 0 without `algorithm.kl`."""
    importance_mean: float = 1.0
    """Mean importance weight, model before the update / engine, before its bounds; 1 without `algorithm.off_policy`."""
    importance_max: float = 1.0
    importance_cut: float = 0.0
    """Share of occurrences whose importance weight was truncated or masked."""
    value_loss: float = 0.0
    """Of the critic, before `algorithm.value.coef`; this and the three that follow are 0 without a critic."""
    value_clip_fraction: float = 0.0
    """Share of occurrences whose value had moved as far as it may."""
    explained_variance: float = 0.0
    """Of the returns, by the values before the update: 1 - var(return - value) / var(return). 1 is a perfect critic, 0
    one that knows no more than the mean; 0 too where all returns are equal."""
    return_mean: float = 0.0
    """What the values should have been, mean over the sampled tokens."""
    entropy: float
    """Mean over the occurrences, nats."""
    learning_rate: float = 0.0
    """Of the last optimizer step."""
    optimizer_steps: int = 1
    """Optimizer steps that were taken."""
    skipped: bool
    """True when an optimizer step was not taken because its loss or gradient was not finite."""
    skipped_in_row: int = 0
    """Updates in a row up to this one in which a step was skipped; 0 after a rollback."""
    rolled_back_to: int | None = None
    """The step whose weights and optimizer were taken again after too many skipped updates; None without."""
    tokens_unmerged: int
    """Tokens if every call were trained alone."""
    tokens_linear: int
    """Tokens in the fewest exact linear rows."""
    tokens_forest: int
    """Tokens that were computed."""
    packs: int
    staleness_mean: float = 0.0
    """Weight versions between what sampled a token and what was trained, mean over the sampled tokens."""
    staleness_max: int = 0
    staleness_tokens: list[int] = []
    """Sampled tokens by how many versions older they were: first those of the version that was trained."""
    stale_fraction: float = 0.0
    """Share of the sampled tokens that were older at all."""
    mixed_calls: int = 0
    """Calls that went on across a change of weights."""
    overlap_tokens: int = 0
    """Tokens that the engine sampled while this update computed; see `engine.during_update`."""
    overlap_seconds: float = 0.0
    """Seconds that this took, which are in `seconds` as well."""
    seconds: dict[str, float]
    """Seconds by stage: `merge` (with packing), `score`, `update`, `checkpoint`."""


class _Event(_Model):
    id: int = 0
    """Grows by at least one from event to event; 0 until the ledger numbered it."""
    at: float = 0.0
    """Unix time, seconds."""


class StateChanged(_Event):
    type: Literal["state_changed"] = "state_changed"
    state: EngineState
    cause: str
    step: int
    weight_version: int


class EpisodeOpened(_Event):
    type: Literal["episode_opened"] = "episode_opened"
    episode_id: str
    group_id: str
    kind: EpisodeKind


class EpisodeFinished(_Event):
    type: Literal["episode_finished"] = "episode_finished"
    episode_id: str
    group_id: str
    kind: EpisodeKind
    reward: float
    calls: int
    completion_tokens: int


class EpisodeLost(_Event):
    """Aborted or expired."""

    type: Literal["episode_lost"] = "episode_lost"
    episode_id: str
    group_id: str
    kind: EpisodeKind
    status: Literal["aborted", "expired"]
    reason: str


class ClientReady(_Event):
    """A client said that it is ready for an update, or that it no longer is."""

    type: Literal["client_ready"] = "client_ready"
    client_id: str
    ready: bool


class UpdateProgress(_Event):
    """Not stored: told to those who watch at that moment."""

    type: Literal["update_progress"] = "update_progress"
    step: int
    stage: str
    """`load`, `generate`, `merge`, `pack`, `score`, `update`, `checkpoint` or `sync`."""
    done: int
    total: int


class StepFinished(_Event):
    type: Literal["step_finished"] = "step_finished"
    report: StepReport
    rollout_s: float
    """Seconds of rolling and draining that collected the batch."""


class WeightsSynced(_Event):
    type: Literal["weights_synced"] = "weights_synced"
    weight_version: int
    probe_error: float
    """Largest difference in log-probability between engine and trainer on the probe, nats."""
    probe_tolerance: float
    seconds: float


class WorkerRestarted(_Event):
    type: Literal["worker_restarted"] = "worker_restarted"
    reason: str
    restarts: int


Event = Annotated[
    StateChanged
    | EpisodeOpened
    | EpisodeFinished
    | EpisodeLost
    | ClientReady
    | UpdateProgress
    | StepFinished
    | WeightsSynced
    | WorkerRestarted,
    Field(discriminator="type"),
]


def parse_event(data: str | bytes) -> Event:
    """Reads one event from JSON. Raises pydantic's `ValidationError` for what is no event."""
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    return adapter.validate_json(data)
