"""The book of episodes over a ledger, without a server."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from call_helpers import make_call

from ajet_core.config import BatchConfig, LimitsConfig
from ajet_core.episode import EpisodeKind
from ajet_core.wire import FinishEpisode, OpenEpisode
from ajet_server.capture.calls import insert_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.records import EpisodeRecord
from ajet_server.episodes.book import OpenState
from ajet_server.episodes.keys import KeyMaker
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.versions import NamedVersions
from ajet_server.observe.bus import EventLog

KEYS = KeyMaker(b"k" * 32)


def admit(_: EpisodeKind) -> None:
    """Always."""


@dataclass
class Book:
    ledger: Ledger
    pool: Pool
    episodes: Episodes

    async def open(self, request_id: str, **fields: Any) -> EpisodeRecord:
        body = OpenEpisode(request_id=request_id, **fields)
        return await self.episodes.open(body, lambda: 0, admit, body.wait_s)

    def state(self, episode_id: str) -> OpenState:
        state = self.episodes._open.get(episode_id)
        assert state is not None
        return state

    async def call(self, record: EpisodeRecord, version: int = 0) -> None:
        """What the gateway does with one call."""
        state = self.episodes.agent(KEYS.key(record.attempt_id, "agent"))
        seq = state.next_seq
        state.next_seq += 1
        call = make_call(f"{record.id}/{seq}", record.id, seq, weight_version=version)
        await self.ledger.write(lambda db: insert_calls(db, [call]))
        state.recorded += 1
        state.oldest_version = version if state.oldest_version is None else min(state.oldest_version, version)

    async def finish(self, record: EpisodeRecord, reward: float = 1.0) -> Any:
        return await self.episodes.finish(record.id, FinishEpisode(reward=reward))


def open_book(file: Path, **limits: Any) -> Book:
    ledger = Ledger(file)
    pool = Pool(BatchConfig(policy="groups", size=2, group_size=2, max_pool_episodes=6), quiet_s=1e9)
    episodes = Episodes(ledger, pool, KEYS, EventLog(ledger), LimitsConfig(**limits), NamedVersions(file.parent, 1))
    episodes.restore()
    return Book(ledger, pool, episodes)


async def outcomes(*jobs: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*jobs, return_exceptions=True)
