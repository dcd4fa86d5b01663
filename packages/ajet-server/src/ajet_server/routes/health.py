"""`/healthz`, `/readyz` and `/metrics`: open to everybody who can connect."""

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from ajet_core.episode import EpisodeKind
from ajet_server.routes.access import ServerDep, refuse_web_pages
from ajet_server.routes.openapi import OUR_ERRORS

router = APIRouter(tags=["health"], dependencies=[Depends(refuse_web_pages)], responses=OUR_ERRORS)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The API process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(server: ServerDep) -> dict[str, str]:
    """200 while train episodes are handed out, else 503 with the cause."""
    server.runtime.conductor.admit(EpisodeKind.TRAIN)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: ServerDep) -> Response:
    """Prometheus' text format."""
    return Response(server.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
