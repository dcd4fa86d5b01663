"""What a server says about itself: its status, what waits to be trained, and what its janitor did."""

from enum import StrEnum

from pydantic import Field

from ajet_core.events import EngineState, StepReport
from ajet_core.wire import FollowedUnion, View


class SourceView(View):
    """What one source gives to the next update."""

    source: str
    quota: int
    """Groups (episodes, with policy `episodes`) that an update takes of it."""
    complete: int
    """Those that wait for an update."""
    open_episodes: int


class PoolView(View):
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
    clients_ready: list[str] = Field(default=[])
    """Clients that agree to an update; empty unless the policy asks them."""
    clients_awaited: list[str] = Field(default=[])
    """Clients at work that have not said so."""
    in_doubt: list[FollowedUnion] = Field(default=[])
    """Unions whose decision nobody brought for a lease; `ajet episodes resolve` brings it."""
    sources: list[SourceView] = Field(default=[])
    """By source, where `batch.sources` has shares."""


class StatusView(View):
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
    requests_continued: int = 0
    """Calls that were paused for new weights and went on with them, since the engine was started."""
    requests_recalled: int = 0
    """Calls that had to begin again for new weights, or because the worker was lost."""
    uptime_s: float
    data_dir: str


class JanitorDeed(StrEnum):
    """What the janitor does without being told to."""

    EXPIRED = "expired"
    """It closed an open episode whose lease or time had run out."""
    SET_ASIDE = "set_aside"
    """It set a finished episode aside that no batch will take."""
    DROPPED = "dropped"
    """It dropped what the calls of episodes held, as `retention` says."""
    FAILED = "failed"
    """It could not do something, which is still due."""


class JanitorAction(View):
    """One thing that the janitor did."""

    at: float
    """Unix time, seconds."""
    deed: JanitorDeed
    episode_id: str | None
    """None where it concerns several, or none."""
    reason: str


class JanitorView(View):
    """`GET /api/janitor`: what the janitor did since this server took its job, in numbers of episodes."""

    rounds: int = 0
    """How often it looked at everything; it does so every second while the engine is on."""
    last_round_at: float | None = None
    """Unix time, seconds."""
    expired: int = 0
    set_aside: int = 0
    dropped: int = 0
    failed: int = 0
    """Rounds that the disk, say, cut short."""
    actions: list[JanitorAction] = Field(default=[])
    """The latest, newest first."""
