"""The FastAPI app and the process around it."""

import gc
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ajet_core.errors import ConfigError
from ajet_server import __version__
from ajet_server.connection import BoundedProtocol
from ajet_server.routes import agents, control, docs, episodes, health, unions
from ajet_server.routes.bodies import Bodies
from ajet_server.routes.direct import DirectApp
from ajet_server.routes.errors import install_error_handlers
from ajet_server.routes.limits import AnnouncedLengthMiddleware
from ajet_server.settings import ServerSettings
from ajet_server.tls import open_tls
from ajet_server.wiring import Server
from ajet_server.worker.process import WORKER_COMMAND

log = logging.getLogger("ajet.server")

_GRACEFUL_S = 5
_BACKLOG = 2048
_MOST_FILES = 65_536
_OTHERS = 0o077
"""What other users may do with files that are written from here on, the worker's too: nothing."""
_OWN_FILES = 64
"""Kept free of connections, for ledger, worker and checkpoints: without a file left, all that a server does fails."""


def build_app(server: Server) -> FastAPI:
    """Returns the app of a server. Its lifespan starts the engine if there is a job, and ends everything in order."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        if server.has_job:
            server.start()
        yield
        await server.close()

    app = DirectApp(
        title="ajet swarm server",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        openapi_url="/api/openapi.json",
        redoc_url=None,
    )
    app.state.server, app.state.bodies = server, Bodies()
    app.direct = agents.endpoints()
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=server.settings.max_request_bytes)
    app.add_middleware(AnnouncedLengthMiddleware, max_bytes=server.settings.max_request_bytes)
    app.add_middleware(ProxyHeadersMiddleware)
    install_error_handlers(app)
    for router in (
        agents.models,
        agents.calls,
        control.router,
        docs.router,
        episodes.router,
        unions.router,
        health.router,
    ):
        app.include_router(router)
    return app


class _HttpServer(uvicorn.Server):
    """Ends what waits first: uvicorn waits for open responses, and those do not end alone."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._server.quit("the server is shutting down")
        await super().shutdown(sockets)


def serve(
    settings: ServerSettings, on_listening: Callable[[str], None], worker_command: Sequence[str] = WORKER_COMMAND
) -> None:
    """Runs a server until it is told to end (`POST /api/shutdown`, SIGTERM, SIGINT).

    Args:
        settings: where to listen and keep the data, and the job to start with.
        on_listening: called with the URL once the socket is bound and the data folder is open.
        worker_command: starts a worker process; see `Server`.

    Raises:
        ConfigError: the port is taken, the address cannot be bound, or the job or a TLS file is wrong.
        StorageError: the data folder is in use or corrupted.
    """
    files = _allow_files()
    os.umask(_OTHERS)
    # A prompt is one text: handing it to a pool of threads only costs.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tls = open_tls(settings.tls) if settings.tls else None
    with _bind(settings) as listener:
        server = Server(settings, worker_command)
        url = _url("https" if tls else "http", settings.host, listener.getsockname()[1])
        config = uvicorn.Config(
            build_app(server),
            http=BoundedProtocol,
            ws="none",
            server_header=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACEFUL_S,
            timeout_keep_alive=75,
            limit_concurrency=files - _OWN_FILES,
            access_log=False,
            proxy_headers=False,  # the app looks at them, for what is not a call of an agent
            ssl_context_factory=_factory(tls),
        )
        http = _HttpServer(config, server)
        server.on_shutdown = lambda: setattr(http, "should_exit", True)
        server.data_dir.announce(url)
        on_listening(url)
        if tls is None and not settings.is_loopback:
            log.warning("%s is clear text: who is on the way reads keys and prompts; see --tls-cert", url)
        _spare_the_collector()
        http.run(sockets=[listener])


def _factory(tls: ssl.SSLContext | None) -> Callable[[uvicorn.Config, object], ssl.SSLContext] | None:
    """What uvicorn asks for a context, which is made already."""
    if tls is None:
        return None

    def made(config: uvicorn.Config, default: object) -> ssl.SSLContext:
        return tls

    return made


def _spare_the_collector() -> None:
    """What is there by now stays, and calls make few cycles; looking every 700 objects is a tenth of a call."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1000)


def _allow_files() -> int:
    """Takes as many open files as the system allows, for each connection is one, and returns how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    most = max(soft, allowed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _bind(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that say they are TCP; with it, calls wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)  # at once: until then a second server could bind the same port
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"port: cannot listen on {settings.host}:{settings.port}: {error}; choose another with --port "
            "(0 takes a free one)",
            field="port",
        ) from error
    return listener


def _url(scheme: str, host: str, port: int) -> str:
    # Whoever listens everywhere is found on loopback by those on the same machine.
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - an address to recognise, not to bind
    return f"{scheme}://{everywhere.get(host, f'[{host}]' if ':' in host else host)}:{port}"
