"""`/api/episodes`: open, prepare, finish, abort, heartbeat."""

from fastapi import APIRouter, Depends, Request, Response

from ajet_core.episode import EpisodeStatus
from ajet_core.wire import AbortEpisode, EpisodeGrant, EpisodeView, FinishEpisode, Lease, OpenEpisode, PrepareEpisode
from ajet_server.capture.records import EpisodeRecord
from ajet_server.routes.access import (
    ServerDep,
    is_admin,
    refuse_web_pages,
    require_client,
    require_control,
    require_view,
)
from ajet_server.routes.disconnect import CLIENT_GONE, unless_disconnected
from ajet_server.routes.openapi import OUR_ERRORS
from ajet_server.wiring import Runtime

router = APIRouter(
    prefix="/api/episodes", tags=["episodes"], dependencies=[Depends(refuse_web_pages)], responses=OUR_ERRORS
)


@router.post("", status_code=201, response_model=EpisodeGrant, dependencies=[Depends(require_client)])
async def open_episode(body: OpenEpisode, request: Request, server: ServerDep) -> EpisodeGrant | Response:
    """Hands out an episode, waiting up to `wait_s` for one; then 503 with `Retry-After` and the reason."""
    runtime = server.runtime
    record = await unless_disconnected(request, _open(runtime, body, request))
    if record is None:
        return Response(status_code=CLIENT_GONE)
    return EpisodeGrant(
        episode_id=record.id,
        attempt_id=record.attempt_id,
        group_id=record.group_id,
        kind=record.kind,
        base_url=f"{str(request.base_url).rstrip('/')}/v1",
        api_key=server.keys.key(record.attempt_id, "agent"),
        control_key=server.keys.key(record.attempt_id, "control"),
        model=runtime.gateway.served_name,
        weight_version=record.weight_version,
        lease_s=runtime.job.limits.lease_s,
    )


async def _open(runtime: Runtime, body: OpenEpisode, request: Request) -> EpisodeRecord | None:
    """Nothing is opened for a client that has left; if it leaves while it waits, this is cancelled."""
    if await request.is_disconnected():
        return None
    conductor = runtime.conductor
    return await runtime.episodes.open(body, lambda: conductor.weight_version, conductor.admit, body.wait_s)


@router.get("/{episode_id}", dependencies=[Depends(require_view)])
async def view_episode(episode_id: str, server: ServerDep) -> EpisodeView:
    """What the ledger knows of the episode."""
    return server.runtime.episodes.view(episode_id)


@router.post("/{episode_id}/prepare", dependencies=[Depends(require_control)])
async def prepare_episode(episode_id: str, body: PrepareEpisode, server: ServerDep) -> EpisodeView:
    """Promises the reward for a union; acknowledged once the promise is on disk."""
    return await server.runtime.episodes.prepare(episode_id, body)


@router.post("/{episode_id}/finish", dependencies=[Depends(require_control)])
async def finish_episode(episode_id: str, body: FinishEpisode, server: ServerDep) -> EpisodeView:
    """Reports the reward; acknowledged once the episode is on disk."""
    return await server.runtime.episodes.finish(episode_id, body)


@router.post("/{episode_id}/abort", dependencies=[Depends(require_control)])
async def abort_episode(episode_id: str, body: AbortEpisode, request: Request, server: ServerDep) -> EpisodeView:
    """Gives the episode up and frees its slot. With the admin token, also one whose union is decided elsewhere."""
    forced = is_admin(request, server)
    return await server.runtime.episodes.lose(episode_id, EpisodeStatus.ABORTED, body.reason, decided=forced)


@router.post("/{episode_id}/heartbeat", dependencies=[Depends(require_control)])
async def heartbeat(episode_id: str, server: ServerDep) -> Lease:
    """Renews the lease."""
    return Lease(episode_id=episode_id, lease_s=server.runtime.episodes.heartbeat(episode_id))
