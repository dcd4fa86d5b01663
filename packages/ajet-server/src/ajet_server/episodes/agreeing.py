"""What clients say about the next update: durable before it is acknowledged, and found again after a restart."""

import time

from ajet_core.errors import ConflictError
from ajet_core.events import ClientReady
from ajet_core.wire import Readiness
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.readiness import readiness_since_last_batch
from ajet_server.episodes.book import Changes
from ajet_server.episodes.pool import Pool
from ajet_server.observe.bus import EventLog


async def agree(body: Readiness, pool: Pool, changes: Changes, events: EventLog) -> None:
    """Records that a client agrees to an update, or takes it back. Again is harmless.

    Raises:
        ConflictError: the job's policy asks no client, so it would have no effect.
    """
    if not pool.asks_clients:
        raise ConflictError(
            "the job's batch policy asks no client, so being ready has no effect; use batch.policy 'any_client' or "
            "'all_clients', or name one of them in batch.when"
        )
    said = ClientReady(client_id=body.client_id, ready=body.ready)
    await events.emit(said, lambda: pool.say(body.client_id, body.ready, time.time()))
    await changes.notify()


def restore_agreements(ledger: Ledger, pool: Pool) -> None:
    """Lets the pool know what clients said since the last update began."""
    for said in ledger.read_now(readiness_since_last_batch):
        pool.say(said.client_id, said.ready, said.at)
