"""Bodies of the control plane, `/api`. Unknown fields are refused on the way in and ignored on the way back.

What a server says about itself is in `status`.
"""

from collections.abc import Collection
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import RewardError
from ajet_core.reward import Reward, validate_reward
from ajet_core.roles import MAX_ROLES, RoleName

Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]
Secret = Annotated[str, Field(min_length=32, max_length=200)]
SecretDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a secret's UTF-8 bytes, hexadecimal."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class View(BaseModel):
    """What a server answers."""

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


class EpisodeGrant(View):
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


def _without_need_of_reward(schema: dict[str, Any]) -> None:
    schema["required"].remove("reward")


class FinishEpisode(_Body):
    """`POST /api/episodes/{id}/finish`: reports the reward. Durable before it is acknowledged."""

    model_config = ConfigDict(json_schema_extra=_without_need_of_reward)

    reward: Reward
    """A finite number. May be left out beside `rewards`: it is their mean then, and nothing is trained on it."""
    rewards: dict[RoleName, Reward] = Field(default_factory=dict, max_length=MAX_ROLES)
    """By role, for exactly the roles that made calls (see `ajet_core.roles`): what each is trained on."""
    metrics: dict[Name, Reward] = Field(default_factory=dict, max_length=100)
    """Further numbers to keep with the episode (parts of the reward, say)."""

    @model_validator(mode="before")
    @classmethod
    def _take_mean(cls, data: Any) -> Any:
        if isinstance(data, dict) and "reward" not in data and isinstance(data.get("rewards"), dict):
            return data | {"reward": _mean(data["rewards"].values())} if data["rewards"] else data
        return data


def _mean(rewards: Collection[object]) -> float:
    """0 if one of them is none: that one is then refused by its name."""
    try:
        return fmean(validate_reward(reward) for reward in rewards)
    except RewardError:
        return 0.0


class Decides(_Body):
    """The part of the episode whose finish decides for its union: its server keeps two secrets and reveals one."""

    commit_secret: Secret
    """Revealed once the episode is finished."""
    abort_secret: Secret
    """Revealed once it is aborted or expired."""

    @model_validator(mode="after")
    def _refuse_equal(self) -> Self:
        if self.commit_secret == self.abort_secret:
            raise ValueError("commit_secret and abort_secret must differ")
        return self


class Follows(_Body):
    """The part of the others: each believes whoever brings the secret of one of two digests."""

    decider: Annotated[str, Field(min_length=1, max_length=2000)]
    """URL of the server that decides; kept for people, never connected to."""
    commit_digest: SecretDigest
    abort_digest: SecretDigest

    @model_validator(mode="after")
    def _refuse_equal(self) -> Self:
        if self.commit_digest == self.abort_digest:
            raise ValueError("commit_digest and abort_digest must differ")
        return self


class PrepareEpisode(FinishEpisode):
    """`POST /api/episodes/{id}/prepare`: promises the reward for a union, episodes that finish together or not at all.

    Durable before it is acknowledged. The episode stays open, takes no more calls, and no batch takes it. The one that
    decides is then finished, aborted, or expires as any other; the others wait for its decision, however long.
    """

    union_id: Name
    """Made by the client, unguessable."""
    part: Decides | Follows


class Decision(_Body):
    """`POST /api/unions/{id}/decision`: brings a union's decision to the episodes that follow it. Again is harmless."""

    secret: Secret
    """The one that the deciding server revealed."""


class UnionState(StrEnum):
    """What became of a union."""

    UNDECIDED = "undecided"
    COMMITTED = "committed"
    ABORTED = "aborted"


class AbortEpisode(_Body):
    """`POST /api/episodes/{id}/abort`: gives the episode up and frees its slot in the group."""

    reason: Reason = "aborted by the client"
    """Why, for people."""


class EpisodeView(View):
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
    rewards: dict[str, float] = {}
    """By role, where its calls named roles."""
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
    union_id: str | None = None
    """The union that it was prepared for."""


class UnionView(View):
    """What a deciding server says of a union."""

    union_id: str
    state: UnionState
    secret: str | None
    """Proves the decision to the others; None while there is none."""


class FollowedUnion(View):
    """A union that open episodes of a server follow: they are prepared and wait for its decision."""

    union_id: str
    decider: str
    """URL of the server that decides, as the client knew it."""
    episode_ids: list[str]
    prepared_at: float
    """Of the first of them. Unix time, seconds."""


class FollowedView(View):
    """`GET /api/unions`: what a server's episodes wait for."""

    unions: list[FollowedUnion]


class Readiness(_Body):
    """`POST /api/ready`: a client agrees to an update, for policies that ask (`any_client`, `all_clients`).

    It holds until the next update begins. Again is harmless.
    """

    client_id: Name
    """The client that says so, by the name it opens its episodes with."""
    ready: bool = True
    """False takes it back."""


class Lease(View):
    """Answer to a heartbeat."""

    episode_id: str
    lease_s: float
    """Seconds from now until the episode expires unless it is renewed."""
