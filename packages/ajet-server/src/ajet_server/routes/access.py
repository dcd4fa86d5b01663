"""Who may call what.

    /v1                                      the agent's key of an open episode, or `<key>.<role>`, as a bearer or as
                                             `x-api-key`
    /api/episodes/{id}                       prepare, finish, abort, heartbeat: the episode's control key
    /api/episodes, unions, status, events,   the client token or the admin token, where tokens are asked for
    ready, janitor, GET job
    the rest of /api                         the admin token, where tokens are asked for

Tokens are asked for beyond loopback, and on loopback if the operator wants it.

They are coroutines so that they run in the event loop, where episodes open and close; FastAPI would run plain
functions in a thread beside it.
"""

import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from ajet_core.errors import EpisodeClosedError, ForbiddenError, KeyRefusedError
from ajet_core.roles import split_key
from ajet_server.episodes.book import OpenState
from ajet_server.wiring import Server


async def server_of(request: Request) -> Server:
    """The server behind the app."""
    server = request.app.state.server
    if not isinstance(server, Server):
        raise RuntimeError("the app was built without a server")
    return server


ServerDep = Annotated[Server, Depends(server_of)]

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def bearer(headers: Mapping[str, str]) -> str | None:
    """The key in `Authorization: Bearer …`, None if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def agent_key(headers: Mapping[str, str]) -> str | None:
    """The key of an agent: the bearer's, else that of `x-api-key`, by which Anthropic's SDKs send it."""
    return bearer(headers) or headers.get("x-api-key", "").strip() or None


async def require_client(request: Request, server: ServerDep) -> None:
    """Lets those through who have the client token or the admin token, and everybody where no token is asked for."""
    _require(request, server, server.client_token, server.admin_token)


async def require_admin(request: Request, server: ServerDep) -> None:
    """Lets those through who have the admin token, and everybody where no token is asked for."""
    _require(request, server, server.admin_token)


def _require(request: Request, server: Server, *tokens: str) -> None:
    if not server.settings.asks_for_token or _is_one_of(bearer(request.headers), *tokens):
        return
    needed = "client-token" if len(tokens) > 1 else "admin-token"
    raise KeyRefusedError(
        f"this needs the {needed.replace('-', ' ')}: the content of the file {needed} in the data folder of the "
        "server, as a bearer token"
    )


def is_admin(request: Request, server: Server) -> bool:
    """Whether the bearer is the admin token."""
    return _is_one_of(bearer(request.headers), server.admin_token)


async def require_control(episode_id: str, request: Request, server: ServerDep) -> None:
    """Lets the episode's control key and the admin token through."""
    key = bearer(request.headers)
    if key is None:
        raise KeyRefusedError(
            f"send 'Authorization: Bearer <control_key>' with the control key of episode {episode_id}"
        )
    if not is_admin(request, server):
        server.runtime.episodes.check_control(episode_id, key)


async def require_view(episode_id: str, request: Request, server: ServerDep) -> None:
    """Lets those look at an episode whom `require_client` lets through, and the holder of its control key."""
    key = bearer(request.headers)
    if key is None or _is_one_of(key, server.client_token):
        await require_client(request, server)
    else:
        await require_control(episode_id, request, server)


def episode_of(headers: Mapping[str, str], server: Server) -> tuple[OpenState, str | None]:
    """Returns the open episode of the agent's key, and the role that the key names, if any."""
    key = agent_key(headers)
    if key is None:
        raise KeyRefusedError(
            "send 'Authorization: Bearer <api_key>' or 'x-api-key: <api_key>' with the api_key of an open episode"
        )
    api_key, role = split_key(key)
    return server.runtime.episodes.agent(api_key), role


async def require_any_episode(request: Request, server: ServerDep) -> None:
    """Lets any key of this server's episodes through, open or closed: for what tells nothing secret."""
    try:
        episode_of(request.headers, server)
    except EpisodeClosedError:
        return


async def refuse_web_pages(request: Request, server: ServerDep) -> None:
    """See `refuse_web_page`."""
    refuse_web_page(request.headers, server)


def refuse_web_page(headers: Mapping[str, str], server: Server) -> None:
    """Refuses what a web page makes a browser send to a server that listens on loopback and asks for no token.

    A page of another origin is known by its `Origin`; one whose name resolves to 127.0.0.1 (DNS rebinding) by `Host`.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and origin.split("://", 1)[-1] != host:
        raise ForbiddenError(f"requests from the web origin {origin!r} are refused")
    settings = server.settings
    if settings.is_loopback and (name := _host_name(host)) not in _LOOPBACK_NAMES and name != settings.host:
        raise ForbiddenError(f"this server listens on {settings.host}; the host {host!r} is refused")


@lru_cache
def _host_name(host: str) -> str:
    """`Host` without its port, and an IPv6 address without its brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket without the other one
        return ""


def _is_one_of(key: str | None, *tokens: str) -> bool:
    return key is not None and any(hmac.compare_digest(key.encode(), token.encode()) for token in tokens)
