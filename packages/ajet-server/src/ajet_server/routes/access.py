"""Who may call what.

    /v1            the agent's key of an open episode
    /api/episodes  finish, abort, heartbeat: the episode's control key
    /api           nothing on loopback; the admin token on any other bind

They are coroutines so that they run in the event loop, where episodes open and close; FastAPI would run plain
functions in a thread beside it.
"""

import hmac
from typing import Annotated

from fastapi import Depends, Request

from ajet_core.errors import EpisodeClosedError, ForbiddenError, KeyRefusedError
from ajet_server.episodes.book import OpenState
from ajet_server.wiring import Server


async def server_of(request: Request) -> Server:
    """The server behind the app."""
    server = request.app.state.server
    if not isinstance(server, Server):
        raise RuntimeError("the app was built without a server")
    return server


ServerDep = Annotated[Server, Depends(server_of)]


def bearer(request: Request) -> str | None:
    """The key in `Authorization: Bearer …`, None if there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


async def require_admin(request: Request, server: ServerDep) -> None:
    """Lets everybody through on loopback, and the admin token elsewhere."""
    if server.settings.is_loopback or _is_admin(server, bearer(request)):
        return
    raise KeyRefusedError(
        f"this server listens on {server.settings.host}, so /api needs the admin token; "
        "send 'Authorization: Bearer <content of admin-token in the data folder>'"
    )


async def require_control(episode_id: str, request: Request, server: ServerDep) -> None:
    """Lets the episode's control key and the admin token through."""
    key = bearer(request)
    if key is None:
        raise KeyRefusedError(
            f"send 'Authorization: Bearer <control_key>' with the control key of episode {episode_id}"
        )
    if not _is_admin(server, key):
        server.runtime.episodes.check_control(episode_id, key)


async def require_view(episode_id: str, request: Request, server: ServerDep) -> None:
    """Lets whoever may use `/api` look at an episode, and the holder of its control key on any bind."""
    if bearer(request) is None:
        await require_admin(request, server)
    else:
        await require_control(episode_id, request, server)


async def require_episode(request: Request, server: ServerDep) -> OpenState:
    """Returns the open episode of the agent's key."""
    key = bearer(request)
    if key is None:
        raise KeyRefusedError("send 'Authorization: Bearer <api_key>' with the api_key of an open episode")
    return server.runtime.episodes.agent(key)


async def require_any_episode(request: Request, server: ServerDep) -> None:
    """Lets any key of this server's episodes through, open or closed: for what tells nothing secret."""
    try:
        await require_episode(request, server)
    except EpisodeClosedError:
        return


async def refuse_foreign_origin(request: Request) -> None:
    """Refuses requests that a web page of another origin makes a browser send to a server on loopback."""
    origin = request.headers.get("origin")
    if origin is not None and origin.split("://", 1)[-1] != request.headers.get("host"):
        raise ForbiddenError(f"requests from the web origin {origin!r} are refused")


def _is_admin(server: Server, key: str | None) -> bool:
    return key is not None and hmac.compare_digest(key.encode(), server.admin_token.encode())
