"""`/api/unions`: what became of episodes that finish together or not at all, and how they learn it.

Whoever may use `/api` may carry a decision from the server that made it to those that follow: it proves itself.
"""

from fastapi import APIRouter, Depends

from ajet_core.wire import Decision, EpisodeView, FollowedView, UnionView
from ajet_server.episodes import deciding
from ajet_server.routes.access import ServerDep, refuse_web_pages, require_client
from ajet_server.routes.openapi import OUR_ERRORS

router = APIRouter(
    prefix="/api/unions",
    tags=["unions"],
    dependencies=[Depends(refuse_web_pages), Depends(require_client)],
    responses=OUR_ERRORS,
)


@router.get("")
async def followed(server: ServerDep) -> FollowedView:
    """The unions that open episodes of this server follow."""
    return FollowedView(unions=server.runtime.episodes.unions.followed())


@router.get("/{union_id}")
async def view_union(union_id: str, server: ServerDep) -> UnionView:
    """What this server decided for a union, and the proof."""
    return server.runtime.episodes.unions.view(union_id)


@router.post("/{union_id}/decision")
async def decide(union_id: str, body: Decision, server: ServerDep) -> list[EpisodeView]:
    """Finishes or aborts the episodes that follow the union; acknowledged once that is on disk."""
    return await deciding.decide(server.runtime.episodes, union_id, body)
