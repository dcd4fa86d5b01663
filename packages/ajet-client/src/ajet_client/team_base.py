"""A team: one episode on each of several servers, finished together or not at all.

Until the first server is told to finish, any trouble aborts all. From then on nothing is aborted any more: what was
decided is only brought to those who do not know it yet, now or later. What to do is told as `steps`.
"""

import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, TypeVar

from ajet_client.api import Api
from ajet_client.bodies import Given
from ajet_client.episode import EpisodeBase
from ajet_client.plans import Plan
from ajet_client.steps import Step, Steps
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import AjetError, ConflictError, EpisodeClosedError, RequestError
from ajet_core.ids import digest_secret, new_secret, new_union_id
from ajet_core.wire import Decides, Follows

E = TypeVar("E", bound=EpisodeBase)

_USER_FRAME = 6
"""Stack frames from the warning up to the user's `with`."""

logger = logging.getLogger("ajet_client")


class TeamBase(Generic[E]):
    """The open episodes of a team, in the order of their servers; made by `together`.

    It unpacks: `planner, executor = team`. The first server decides for all.
    """

    def __init__(self, episodes: Sequence[E], apis: Sequence[Api], decider: str) -> None:
        self._episodes = tuple(episodes)
        self._apis = apis
        self._decider = decider
        self._union_id = new_union_id()
        self._commit_secret, self._abort_secret = new_secret(), new_secret()
        self._lock = threading.Lock()
        self._phase: Literal["open", "committing", "aborted"] = "open"
        self._untold: set[int] = set()

    def __iter__(self) -> Iterator[E]:
        return iter(self._episodes)

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, number: int) -> E:
        return self._episodes[number]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._union_id} {list(self._episodes)}>"

    @property
    def union_id(self) -> str:
        """Id that the servers know the team by, `un_…`."""
        return self._union_id

    @property
    def id(self) -> str:
        """Id of the episode that decides."""
        return self._episodes[0].id

    @property
    def group_id(self) -> str:
        """Group of the episode that decides."""
        return self._episodes[0].group_id

    @property
    def kind(self) -> EpisodeKind:
        """`train` or `eval`, the same for all."""
        return self._episodes[0].kind

    @property
    def recorded_reward(self) -> float | None:
        """Mean of the rewards set so far; None while one is missing."""
        rewards = [episode.recorded_reward for episode in self._episodes]
        known = [reward for reward in rewards if reward is not None]
        return sum(known) / len(known) if len(known) == len(rewards) else None

    @property
    def metrics(self) -> dict[str, float]:
        """Rewards and metrics by number of the episode: `0.reward`, `1.reward`, `1.steps`."""
        found = {
            f"{number}.{name}": value
            for number, episode in enumerate(self._episodes)
            for name, value in episode.metrics.items()
        }
        rewards = [(number, episode.recorded_reward) for number, episode in enumerate(self._episodes)]
        return found | {f"{number}.reward": reward for number, reward in rewards if reward is not None}

    def reward(self, values: Sequence[Given] | Given, /) -> None:
        """Records the rewards of all episodes, in their order.

        Raises:
            RequestError: there are more or fewer rewards than episodes, or it is one number.
            RewardError: one cannot be a reward.
            EpisodeClosedError: an episode was aborted, or its server has closed it.
        """
        wanted = len(self._episodes)
        if not isinstance(values, Sequence) or len(values) != wanted:
            raise RequestError(f"reward: want {wanted} rewards, one an episode, got {values!r}", field="reward")
        for episode, value in zip(self._episodes, values, strict=True):
            episode.reward(value)

    # What follows is for `together`.

    @property
    def left_doubt(self) -> bool:
        """Whether a server may have still to hear what was decided."""
        return bool(self._untold)

    def settle(self) -> Steps[None]:
        """The block ended well: finishes all, or aborts all and raises. Without every reward, aborts and warns."""
        if any(episode.status is EpisodeStatus.ABORTED for episode in self._episodes):
            yield from self.abandon("another episode of the team was aborted")
            return
        if missing := [episode.id for episode in self._episodes if episode.recorded_reward is None]:
            yield from self.abandon("the team ended without all its rewards")
            text = f"the team ended without a reward for {', '.join(missing)} and was aborted: {self._union_id}"
            warnings.warn(text, RuntimeWarning, stacklevel=_USER_FRAME)
            return
        self._untold = set(range(1, len(self._episodes)))
        try:
            for number, episode in enumerate(self._episodes):
                yield Step(number, episode.prepare(self._union_id, self._part(number)))
        except BaseException as error:
            yield from self.abandon(f"the team could not be prepared: {type(error).__name__}: {error}")
            raise
        if self._leave_open("committing"):
            yield from self._commit()

    def _part(self, number: int) -> Decides | Follows:
        commit, abort = self._commit_secret, self._abort_secret
        if number == 0:
            return Decides(commit_secret=commit, abort_secret=abort)
        return Follows(decider=self._decider, commit_digest=digest_secret(commit), abort_digest=digest_secret(abort))

    def _commit(self) -> Steps[None]:
        try:
            yield Step(0, self._episodes[0].commit())
        except (EpisodeClosedError, ConflictError) as refusal:  # so it is aborted, or will expire
            yield from self._give_up_all(f"the team's first episode could not be finished: {refusal.message}")
            raise
        except BaseException as error:
            error.add_note(f"whether union {self._union_id} is committed is unknown; `resolve` finds out")
            raise
        for episode in self._episodes[1:]:
            episode.follow()
        for number in range(1, len(self._episodes)):
            try:
                yield Step(number, self._apis[number].decide(self._union_id, self._commit_secret))
                self._untold.discard(number)
            except AjetError as trouble:  # `resolve` will tell it
                logger.warning("%r is finished, but its server has still to hear of it: %s", self[number], trouble)

    def fail(self, error: BaseException) -> Steps[None]:
        """The block raised: aborts all. Trouble with that is a note on the error and never replaces it."""
        if self._leave_open("aborted"):
            for number, episode in enumerate(self._episodes):
                yield Step(number, episode.fail(error))

    def abandon(self, reason: str) -> Steps[None]:
        """Aborts all, unless the first server may have been told to finish. Again is harmless."""
        if self._leave_open("aborted"):
            yield from self._give_up_all(reason)

    def _give_up_all(self, reason: str) -> Steps[None]:
        for number in range(len(self._episodes)):
            try:
                yield Step(number, self._give_up(number, reason))
            except AjetError as trouble:
                logger.info("%r could not be aborted: %s", self._episodes[number], trouble)

    def _give_up(self, number: int, reason: str) -> Plan[None]:
        try:
            yield from self._episodes[number].give_up(reason)
        except ConflictError:  # it is prepared, and wants to see that the union is aborted
            yield from self._apis[number].decide(self._union_id, self._abort_secret)
        self._untold.discard(number)

    def _leave_open(self, phase: Literal["committing", "aborted"]) -> bool:
        with self._lock:
            if self._phase != "open":
                return False
            self._phase = phase
            return True
