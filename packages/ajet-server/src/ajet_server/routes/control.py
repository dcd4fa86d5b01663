"""`/api`: the control plane."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from ajet_core.config import Job
from ajet_core.status import JanitorView, PoolView, StatusView
from ajet_core.wire import Readiness
from ajet_server.episodes.agreeing import agree
from ajet_server.routes.access import ServerDep, refuse_web_pages, require_admin, require_client
from ajet_server.routes.openapi import OUR_ERRORS

_NEWEST = 2**63 - 1
router = APIRouter(prefix="/api", tags=["control"], dependencies=[Depends(refuse_web_pages)], responses=OUR_ERRORS)
_client, _admin = [Depends(require_client)], [Depends(require_admin)]


@router.get("/status", dependencies=_client)
async def status(server: ServerDep) -> StatusView:
    """One look at the server: state, cause, pool, last step."""
    return server.status()


@router.get("/janitor", dependencies=_client)
async def janitor(server: ServerDep) -> JanitorView:
    """What the janitor expired, set aside and dropped, when and why."""
    return server.janitor()


@router.get("/job", dependencies=_client)
async def get_job(server: ServerDep) -> Job:
    """The present job."""
    return server.runtime.job


@router.put("/job", dependencies=_admin)
async def put_job(job: Job, server: ServerDep) -> Job:
    """Gives the server a job while its engine is offline or failed."""
    await server.set_job(job)
    return server.runtime.job


@router.post("/start", dependencies=_admin)
async def start(server: ServerDep) -> StatusView:
    """Starts the engine; the answer does not wait for it. Harmless while it runs."""
    server.start()
    return server.status()


@router.post("/stop", dependencies=_admin)
async def stop(server: ServerDep) -> StatusView:
    """Stops the engine. The server, its episodes and its data stay."""
    await server.stop("stopped by POST /api/stop")
    return server.status()


@router.post("/shutdown", status_code=202, dependencies=_admin)
async def shutdown(server: ServerDep) -> dict[str, str]:
    """Ends the server process in order."""
    server.request_shutdown()
    return {"status": "shutting down"}


@router.post("/ready", dependencies=_client)
async def ready(body: Readiness, server: ServerDep) -> PoolView:
    """A client agrees to an update. Acknowledged once it is on disk."""
    runtime = server.runtime
    await agree(body, runtime.pool, runtime.episodes.changes, server.events)
    return server.pool_view()


@router.get("/events", response_class=EventSourceResponse, dependencies=_client)
async def events(
    server: ServerDep,
    after: Annotated[int, Query(ge=0, le=_NEWEST)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=_NEWEST)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Every event after `after` (or `Last-Event-ID`), then each new one as it happens."""
    start = after if last_event_id is None else last_event_id
    async for number, data in server.events.follow(start):
        yield ServerSentEvent(raw_data=data, id=None if number is None else str(number))
