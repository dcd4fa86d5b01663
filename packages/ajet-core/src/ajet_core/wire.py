"""Bodies of the control plane, `/api`. Unknown fields are refused on the way in and ignored on the way back."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.events import EngineState, StepReport
from ajet_core.reward import Reward

Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class _View(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class OpenEpisode(_Body):
    """`POST /api/episodes`: asks for an episode."""

    request_id: Name
    """Made by the client. The same id again returns the same grant, so a retry is harmless."""
    kind: EpisodeKind = EpisodeKind.TRAIN
    """`train` or `eval`."""
    task: JsonValue = None
    """What the agent is to do, as any JSON value; kept with the episode and never interpreted."""
    task_id: Name | None = None
    """Name of the task. By default the digest of `task`: equal tasks are one task."""
    source: Name | None = None
    """Where the task comes from ("math"): a label, kept with the episode. Needed where `batch.sources` has shares."""
    group_id: Name | None = None
    """The group to join. By default the server fills an unfinished group of the task, or begins a new one."""
    client_id: Name = "anonymous"
    """Which client process asks; shown in the status."""
    weights: Annotated[int, Field(ge=0)] | None = None
    """Only with kind `eval`: the weight version that samples every call of the episode, whatever is trained meanwhile.
    0 is the model as loaded. By default each call is sampled with the weights of its moment."""
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0
    """How long the server may hold the request until it can hand out an episode, in seconds."""

    @field_validator("weights")
    @classmethod
    def _refuse_training(cls, weights: int | None, info: ValidationInfo) -> int | None:
        if weights is not None and info.data.get("kind") is EpisodeKind.TRAIN:
            raise ValueError("only an episode of kind 'eval' may name its weights; leave it out")
        return weights


class EpisodeGrant(_View):
    """An open episode: where its agent calls, and with which key."""

    episode_id: str
    attempt_id: str
    group_id: str
    kind: EpisodeKind
    base_url: str
    """Base URL for an OpenAI client, ending in `/v1`."""
    api_key: str
    """The agent's key: inference on this attempt, nothing else."""
    control_key: str
    """The client's key: finish, abort, heartbeat. Not for the agent, which must not set its own reward."""
    model: str
    """The name to send as `model`."""
    weight_version: int
    lease_s: float
    """Seconds of silence after which the episode expires; calls and heartbeats renew it."""


class FinishEpisode(_Body):
    """`POST /api/episodes/{id}/finish`: reports the reward. Durable before it is acknowledged."""

    reward: Reward
    """A finite number."""
    metrics: dict[Name, Reward] = Field(default_factory=dict, max_length=100)
    """Further numbers to keep with the episode (parts of the reward, say)."""


class AbortEpisode(_Body):
    """`POST /api/episodes/{id}/abort`: gives the episode up and frees its slot in the group."""

    reason: Reason = "aborted by the client"
    """Why, for people."""


class EpisodeView(_View):
    """What the server knows of an episode."""

    episode_id: str
    attempt_id: str
    group_id: str
    task_id: str
    source: str | None = None
    """Where its task comes from, if the client said so."""
    kind: EpisodeKind
    status: EpisodeStatus
    client_id: str
    reward: float | None
    metrics: dict[str, float]
    reason: str | None
    """Why it was aborted or expired."""
    calls: int
    prompt_tokens: int
    completion_tokens: int
    weight_version: int
    """The version under which it was opened, or the one that it names."""
    weights: int | None = None
    """The version that it names for all its calls; None is the one of each call's moment."""
    batch_id: str | None
    """The batch that took it, once one has."""


class Readiness(_Body):
    """`POST /api/ready`: a client agrees to an update, for policies that ask (`any_client`, `all_clients`).

    It holds until the next update begins. Again is harmless.
    """

    client_id: Name
    """The client that says so, by the name it opens its episodes with."""
    ready: bool = True
    """False takes it back."""


class Lease(_View):
    """Answer to a heartbeat."""

    episode_id: str
    lease_s: float
    """Seconds from now until the episode expires unless it is renewed."""


class SourceView(_View):
    """What one source gives to the next update."""

    source: str
    quota: int
    """Groups (episodes, with policy `episodes`) that an update takes of it."""
    complete: int
    """Those that wait for an update."""
    open_episodes: int


class PoolView(_View):
    """What waits to be trained."""

    open_episodes: int
    finished_episodes: int
    """Finished train episodes that no batch has taken."""
    stale_episodes: int
    """Finished train episodes set aside: tokens older than `batch.max_staleness` allows, or a group that
    `informative_groups` will never take."""
    groups_complete: int
    groups_open: int
    ready: bool
    waiting_for: str
    """One sentence: what is missing before the next update."""
    clients_ready: list[str] = []
    """Clients that agree to an update; empty unless the policy asks them."""
    clients_awaited: list[str] = []
    """Clients at work that have not said so."""
    sources: list[SourceView] = []
    """By source, where `batch.sources` has shares."""


class StatusView(_View):
    """`GET /api/status`: one look at a server."""

    name: str | None
    state: EngineState
    cause: str
    """Why the server is in this state; for `failed`, what failed and what to do."""
    why: str = ""
    """What trains now, or why nothing does, in one sentence."""
    model: str | None
    weight_version: int
    """The optimizer step whose weights are served: 0 is the model as loaded."""
    step: int
    """Optimizer steps done and checkpointed."""
    pool: PoolView
    last_step: StepReport | None
    worker_pid: int | None
    worker_restarts: int
    requests_running: int
    requests_waiting: int
    uptime_s: float
    data_dir: str
