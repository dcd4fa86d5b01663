"""Finished train episodes that wait for a batch. Knows no clock: the pool feeds it live, `replay` from a ledger."""

from ajet_core.config import BatchConfig
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.clients import Clients
from ajet_server.episodes.policies import Census, Decision, Tally, count, decide, uninformative_groups


class Waiting:
    """The episodes, the clients' agreement, and what the batch policy says of them.

    Args:
        config: the job's batch policy.
        quiet_s: how long a client without an open episode still takes part, seconds.

    Attributes:
        clients: who is at work and who agrees.
        weight_version: the version that is served.
    """

    def __init__(self, config: BatchConfig, quiet_s: float) -> None:
        self._config = config
        self._rows: dict[str, PoolRow] = {}
        self._tally = Tally()
        self._census: Census | None = None
        self.clients = Clients(quiet_s)
        self.weight_version = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[PoolRow]:
        """The episodes, oldest first."""
        return list(self._rows.values())

    def group_of(self, episode_id: str) -> str:
        """Returns the group of an episode that waits."""
        return self._rows[episode_id].group_id

    def add(self, row: PoolRow) -> None:
        """Takes a finished episode."""
        self._rows[row.episode_id] = row
        self._census = None

    def drop(self, episode_id: str) -> None:
        """Lets an episode go, if it is here."""
        if self._rows.pop(episode_id, None) is not None:
            self._census = None

    def begin_batch(self) -> None:
        """A batch took what it wants: uninformative groups are counted anew."""
        self._tally = Tally()
        self._census = None

    def unusable(self) -> list[PoolRow]:
        """Episodes that no batch will take: too old, of an uninformative group, or of a source without a share."""
        stale = {
            row.episode_id: row
            for row in self._rows.values()
            if row.oldest_version < self._oldest or not self._has_share(row)
        }
        aside = [row for group in uninformative_groups(self.rows, self._config) for row in group]
        return list((stale | {row.episode_id: row for row in aside}).values())

    def _has_share(self, row: PoolRow) -> bool:
        return self._config.sources is None or row.source in self._config.sources

    def why_unusable(self, row: PoolRow) -> str:
        """Returns why no batch will take one of these, in a clause."""
        if not self._has_share(row):
            return f"its source {row.source!r} has no share of an update (batch.sources)"
        if row.oldest_version >= self._oldest:
            return "the rewards of its group do not differ (the policy waits for informative groups)"
        return (
            f"it holds tokens of weight version {row.oldest_version}, and {self.weight_version} is served: "
            f"more than batch.max_staleness={self._config.max_staleness}"
        )

    @property
    def _oldest(self) -> int:
        """The oldest weight version whose tokens a batch may take."""
        return self.weight_version - self._config.max_staleness

    def remember(self, rows: list[PoolRow]) -> None:
        """Counts the uninformative groups among episodes that are set aside, so that the status can tell of them."""
        self._tally = self._tally.plus(uninformative_groups(rows, self._config))
        self._census = None

    def decision(self, now: float) -> Decision:
        """What the batch policy says at the time `now`."""
        return decide(self.census(), self._config, self.clients.agreement(now), self.weight_version, now)

    def census(self) -> Census:
        """The episodes, counted: once, until they change."""
        if self._census is None:
            self._census = count(self._rows.values(), self._tally, self._config)
        return self._census
