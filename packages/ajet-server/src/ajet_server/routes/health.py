"""`/healthz`, `/readyz` and `/metrics`: open to everybody who can connect."""

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from ajet_core.errors import UnavailableError
from ajet_core.events import EngineState
from ajet_server.routes.access import ServerDep, refuse_web_pages
from ajet_server.routes.openapi import OUR_ERRORS

router = APIRouter(tags=["health"], dependencies=[Depends(refuse_web_pages)], responses=OUR_ERRORS)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The API process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(server: ServerDep) -> dict[str, str]:
    """200 while train episodes are handed out, else 503 with the state. `/api/status` has the cause."""
    if server.state is not EngineState.ROLLING:
        raise UnavailableError(f"the server is {server.state}; see /api/status", retry_after_s=1.0)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: ServerDep) -> Response:
    """Prometheus' text format."""
    return Response(server.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
