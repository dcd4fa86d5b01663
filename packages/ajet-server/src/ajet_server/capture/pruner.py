"""The janitor's part that forgets: contents of calls, little by little, so that nobody waits for it."""

import logging
import time

from ajet_server.capture.ledger import Ledger
from ajet_server.capture.retention import Dropped, Rule, drop_some, droppable, give_back

log = logging.getLogger("ajet.retention")

_EVERY_S = 60.0
"""How often it looks when there was nothing left to do."""


class Pruner:
    """Holds a ledger to a rule.

    Args:
        ledger: of the server.
        rule: of its job.
    """

    def __init__(self, ledger: Ledger, rule: Rule) -> None:
        self._ledger = ledger
        self._rule = rule
        self._due = time.monotonic()
        self._dropped = Dropped()

    async def step(self) -> Dropped:
        """Does one small transaction if it is due. Call it again and again; while there is more, each call does one.

        Returns what it dropped.

        Raises:
            StorageError: the disk refuses; what could not be done is still due.
        """
        if not self._rule.bounded or time.monotonic() < self._due:
            return Dropped()
        now = time.time()
        if await self._ledger.read(lambda db: droppable(db, self._rule, now, 1)):
            dropped = await self._ledger.write(lambda db: drop_some(db, self._rule, now))
            self._dropped += dropped
            return dropped
        if not await self._ledger.write(give_back):
            self._tell()
            self._due = time.monotonic() + _EVERY_S
        return Dropped()

    def _tell(self) -> None:
        if self._dropped.episodes:
            text = "dropped what %d calls of %d episodes held (%d bytes), as `retention` says"
            log.info(text, self._dropped.calls, self._dropped.episodes, self._dropped.bytes)
        self._dropped = Dropped()
