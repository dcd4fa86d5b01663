"""`/api/docs`: the API for people to read. It shows what `/api/openapi.json` says.

The page's script comes from a content network. In this server's origin it could do whatever the user may; so the page
is put into a sandbox, an origin of its own, whose requests are refused as those of any other web page. What it shows is
inside of it.
"""

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from ajet_server.routes.access import refuse_web_pages

_SANDBOX = "sandbox allow-scripts; frame-ancestors 'none'"

router = APIRouter(prefix="/api", include_in_schema=False, dependencies=[Depends(refuse_web_pages)])


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    app: FastAPI = request.app
    shown: dict[str, Any] = {"spec": app.openapi(), "supportedSubmitMethods": []}
    page = get_swagger_ui_html(openapi_url="", title=app.title, swagger_ui_parameters=shown)
    page.headers["Content-Security-Policy"] = _SANDBOX
    return page
