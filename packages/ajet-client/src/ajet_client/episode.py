"""An open episode, as the agent's code sees it.

`EpisodeBase` holds what it knows and decides what leaving it means; `Episode` and `AsyncEpisode` add `abort`.
"""

import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, SupportsFloat

from pydantic import JsonValue

from ajet_client.api import Api
from ajet_client.bodies import finish_body
from ajet_client.plans import Plan
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import AjetError, ConflictError, EpisodeClosedError
from ajet_core.reward import validate_reward
from ajet_core.wire import Decides, EpisodeGrant, EpisodeView, Follows

if TYPE_CHECKING:
    from ajet_client.transport import AsyncLink, Link

_NO_REWARD = "the episode ended without a reward"
_USER_FRAME = 5
"""Stack frames from the warning up to the user's `with`."""


class EpisodeBase:
    """What the sync and the async episode share. Made by `Swarm.episode` and `AsyncSwarm.episode`."""

    def __init__(self, api: Api, grant: EpisodeGrant, task: JsonValue) -> None:
        self._api = api
        self._grant = grant
        self._task = task
        self._reward: float | None = None
        self._metrics: dict[str, float] = {}
        self._closing = threading.Lock()
        self._status = EpisodeStatus.OPEN
        self._lost: EpisodeClosedError | None = None
        self._view: EpisodeView | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._status} group={self.group_id} kind={self.kind}>"

    @property
    def id(self) -> str:
        """Id of the episode, `ep_…`."""
        return self._grant.episode_id

    @property
    def group_id(self) -> str:
        """Id of the group of rollouts that it is compared with, `grp_…`."""
        return self._grant.group_id

    @property
    def kind(self) -> EpisodeKind:
        """`train` or `eval`."""
        return self._grant.kind

    @property
    def task(self) -> JsonValue:
        """What the agent is to do, as it was given to `episode()`."""
        return self._task

    @property
    def base_url(self) -> str:
        """Base URL for the agent's LLM client, ending in `/v1`."""
        return self._grant.base_url

    @property
    def api_key(self) -> str:
        """Key for the agent's LLM client. It allows inference in this episode, and nothing else."""
        return self._grant.api_key

    @property
    def model(self) -> str:
        """The name to send as `model`."""
        return self._grant.model

    @property
    def weight_version(self) -> int:
        """Version of the weights when the episode was opened."""
        return self._grant.weight_version

    @property
    def status(self) -> EpisodeStatus:
        """Where the episode stands, as far as this client knows."""
        return self._status

    @property
    def is_closed(self) -> bool:
        """Whether it is over, as far as this client knows."""
        return self._status is not EpisodeStatus.OPEN

    @property
    def recorded_reward(self) -> float | None:
        """The reward set so far."""
        return self._reward

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics set so far (a copy)."""
        return dict(self._metrics)

    @property
    def view(self) -> EpisodeView | None:
        """What the server answered when the episode was closed; None until then."""
        return self._view

    def reward(self, value: SupportsFloat, /, **metrics: SupportsFloat) -> None:
        """Records the reward. The report is sent when the `with` block ends; the last call counts.

        Args:
            value: a finite number, at most 1e6 in magnitude.
            metrics: further finite numbers to keep with the episode (parts of the reward, say).

        Raises:
            RewardError: `value` or a metric cannot be one; its `field` is `reward` or `metrics.<name>`.
            EpisodeClosedError: the episode was aborted, or the server has closed it.
        """
        self.refuse_closed()
        number = validate_reward(value)
        checked = {name: validate_reward(item, f"metrics.{name}") for name, item in metrics.items()}
        finish_body(number, self._metrics | checked)
        self._reward = number
        self._metrics |= checked

    # What follows is for the swarm.

    def refuse_closed(self) -> None:
        """Raises `EpisodeClosedError` if the episode is closed, as far as this client knows."""
        if self._lost is not None:
            raise self._lost
        if self._status is not EpisodeStatus.OPEN:
            raise EpisodeClosedError(f"episode {self.id} is {self._status}; it takes no reward")

    @property
    def grant(self) -> EpisodeGrant:
        """The server's grant, with the control key, which is not for the agent."""
        return self._grant

    def lose(self, error: AjetError) -> None:
        """Notes that the server has closed the episode, unless this client closed it itself.

        The answer to a heartbeat may come late: a finished or aborted episode has no lease to renew either.
        """
        lost = EpisodeClosedError(f"the server has closed episode {self.id}: {error.message}")
        self._close(EpisodeStatus.EXPIRED, lost)

    def settle(self) -> Plan[None]:
        """The block ended well: reports the reward. Without one, aborts and warns."""
        if self._status is EpisodeStatus.ABORTED:
            return
        self.refuse_closed()
        if self._reward is None:
            with suppress(AjetError):  # it expires by itself
                yield from self.give_up(_NO_REWARD)
            warnings.warn(f"{_NO_REWARD} and was aborted: {self.id}", RuntimeWarning, stacklevel=_USER_FRAME)
            return
        yield from self._finish(self._reward)

    def fail(self, error: BaseException) -> Plan[None]:
        """The block raised: aborts. Trouble with that is a note on the error and never replaces it."""
        if self._lost is not None:
            error.add_note(str(self._lost))
        if self._status is not EpisodeStatus.OPEN:
            return
        try:
            yield from self.give_up(describe(error))
        except AjetError as trouble:
            error.add_note(f"{self!r} could not be aborted and will expire: {trouble}")

    def prepare(self, union_id: str, part: Decides | Follows) -> Plan[None]:
        """Promises the reward, for a union. Raises `EpisodeClosedError` if the episode is closed."""
        self.refuse_closed()
        try:
            report = finish_body(self._promised, self._metrics)
            self._view = yield from self._api.prepare(self._grant, report, union_id, part)
        except EpisodeClosedError as error:
            self.lose(error)
            self.refuse_closed()

    def commit(self) -> Plan[None]:
        """Reports the reward that was promised, and so decides for the union."""
        yield from self._finish(self._promised)

    @property
    def _promised(self) -> float:
        if self._reward is None:
            raise RuntimeError("there is no reward to promise")
        return self._reward

    def follow(self) -> None:
        """The union was committed, so the episode is finished, or will be as soon as its server hears of it."""
        with self._closing:
            self._status, self._lost = EpisodeStatus.FINISHED, None

    def give_up(self, reason: str) -> Plan[None]:
        """Aborts. Does nothing if the episode is closed already."""
        if not self._close(EpisodeStatus.ABORTED):
            return
        with suppress(EpisodeClosedError):
            self._view = yield from self._api.abort(self._grant, reason)

    def _finish(self, reward: float) -> Plan[None]:
        try:
            self._view = yield from self._api.finish(self._grant, reward, self._metrics)
        except EpisodeClosedError as error:
            self.lose(error)
            self.refuse_closed()
        except ConflictError as error:  # it made no call, say: the server will not take it, so its slot is given back
            yield from self.fail(error)
            raise
        with self._closing:  # the server has the reward, whatever a heartbeat or an abort made of it meanwhile
            self._status, self._lost = EpisodeStatus.FINISHED, None

    def _close(self, status: EpisodeStatus, lost: EpisodeClosedError | None = None) -> bool:
        """Leaves the state `open`. Returns False if somebody was faster; then nothing changes."""
        with self._closing:
            if self._status is not EpisodeStatus.OPEN:
                return False
            self._status, self._lost = status, lost
            return True


class Episode(EpisodeBase):
    """An open episode of a `Swarm`."""

    def __init__(self, api: Api, grant: EpisodeGrant, task: JsonValue, link: "Link") -> None:
        super().__init__(api, grant, task)
        self._link = link

    def abort(self, reason: str) -> None:
        """Gives the episode up and frees its slot; afterwards it takes no reward. Twice is as good as once.

        Raises:
            UnavailableError: the server did not answer within 10 s; the episode expires by itself.
        """
        self._link.run(self.give_up(reason))


class AsyncEpisode(EpisodeBase):
    """An open episode of an `AsyncSwarm`."""

    def __init__(self, api: Api, grant: EpisodeGrant, task: JsonValue, link: "AsyncLink") -> None:
        super().__init__(api, grant, task)
        self._link = link

    async def abort(self, reason: str) -> None:
        """Gives the episode up and frees its slot; afterwards it takes no reward. Twice is as good as once.

        Raises:
            UnavailableError: the server did not answer within 10 s; the episode expires by itself.
        """
        await self._link.run(self.give_up(reason))


def describe(error: BaseException) -> str:
    """Returns an error's type and text, as the reason of an abort."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
