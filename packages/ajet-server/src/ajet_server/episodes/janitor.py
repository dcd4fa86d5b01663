"""The janitor: does what is due by itself, and writes it down in the diary."""

import asyncio
import logging
from collections.abc import Callable

from ajet_core.errors import AjetError
from ajet_core.wire import JanitorDeed
from ajet_server.capture.pruner import Pruner
from ajet_server.episodes.batches import Batches
from ajet_server.episodes.deciding import settle
from ajet_server.episodes.lifecycle import Episodes

log = logging.getLogger("ajet.janitor")

_EVERY_S = 1.0


class Janitor:
    """Expires silent episodes, decides unions, sets aside what no batch will take, holds to `retention`."""

    def __init__(self, episodes: Episodes, batches: Batches, pruner: Pruner) -> None:
        self._episodes = episodes
        self._batches = batches
        self._pruner = pruner

    async def work(self, weight_version: Callable[[], int]) -> None:
        """Looks at everything again and again, until it is cancelled.

        Args:
            weight_version: tells the version that is served.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._episodes.expire_silent()
                await settle(self._episodes)
                await self._batches.set_aside(weight_version())
                await self._forget()
                self._episodes.diary.round_done()
            except AjetError as error:
                # The disk may recover; what could not be recorded is still due at the next round.
                log.error("%s", error.message)
                self._episodes.diary.note(JanitorDeed.FAILED, error.message)

    async def _forget(self) -> None:
        dropped = await self._pruner.step()
        if dropped.episodes:
            told = f"{dropped.calls} calls of {dropped.episodes} episodes, {dropped.bytes} bytes, as `retention` says"
            self._episodes.diary.note(JanitorDeed.DROPPED, told, episodes=dropped.episodes)
