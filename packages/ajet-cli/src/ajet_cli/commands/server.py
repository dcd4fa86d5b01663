"""`ajet server`: start, look at and stop a swarm server."""

import contextlib
import os
from pathlib import Path

import click

from ajet_cli.jobfile import is_given, load_job
from ajet_cli.laststep import describe_step
from ajet_cli.output import json_option, show
from ajet_cli.spawn import read_token, read_url, spawn_server
from ajet_client import Swarm
from ajet_core.errors import ConfigError
from ajet_core.wire import StatusView

_DEFAULT_DIR = Path(".ajet")
_ANSWER_TIMEOUT_S = 5.0

_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULT_DIR,
    show_default=True,
    envvar="AJET_DATA_DIR",
    help="Folder of the ledger, the checkpoints and the keys.",
)
_url = click.option("--url", default=None, help="The server's URL; by default the one in the data folder.")
_token = click.option(
    "--token", default=None, envvar="AJET_TOKEN", help="Admin token; by default the one in the data folder, if any."
)


@click.group()
def server() -> None:
    """Start, look at and stop a swarm server."""


@server.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--job", "job_file", type=click.Path(path_type=Path, dir_okay=False), help="Job file (YAML).")
@_data_dir
@click.option("--detach", is_flag=True, help="Run in the background, log into the data folder.")
@click.argument("overrides", nargs=-1)
@json_option
def start(
    host: str, port: int, job_file: Path | None, data_dir: Path, detach: bool, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Start a server. Without a job it goes on with the data folder's, or waits for one.

    OVERRIDES are key=value pairs over the job file, or the data folder's job: optimizer.learning_rate=5e-4
    """
    if detach:
        arguments = ["--host", host, "--port", str(port), *(["--job", str(job_file)] if job_file else []), *overrides]
        spawned = spawn_server(data_dir, arguments)
        pid = spawned.process.pid
        text = f"listening on {spawned.url} (process {pid}); log in {spawned.log}"
        show({"url": spawned.url, "pid": pid, "log": str(spawned.log)}, text, as_json=as_json)
        return
    try:
        from ajet_server.app import serve
        from ajet_server.datadir import stored_job
        from ajet_server.settings import ServerSettings
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server is not installed here ({error}); install ajet-cli[server]") from error
    job = None
    if is_given(job_file, overrides, os.environ):
        job = load_job(job_file, overrides, os.environ, stored_job(data_dir))
    settings = ServerSettings(host, port, data_dir, job)
    _log_to_stderr()
    # Ctrl-C is how a server in the foreground is told to end; by now it has ended in order.
    with contextlib.suppress(KeyboardInterrupt):
        serve(
            settings,
            lambda url: show(
                {"url": url, "data_dir": str(data_dir.resolve())},
                f"listening on {url}; data in {data_dir}",
                as_json=as_json,
            ),
        )


@server.command()
@_data_dir
@_url
@_token
@json_option
def status(data_dir: Path, url: str | None, token: str | None, as_json: bool) -> None:
    """Say what the server does, or why nothing trains now."""
    with Swarm(_find(data_dir, url), token=token or read_token(data_dir), timeout=_ANSWER_TIMEOUT_S) as swarm:
        view = swarm.status()
    show(view.model_dump(mode="json"), _describe(view), as_json=as_json)


@server.command()
@_data_dir
@_url
@_token
@json_option
def stop(data_dir: Path, url: str | None, token: str | None, as_json: bool) -> None:
    """End the server in order. Nothing that was acknowledged is lost."""
    address = _find(data_dir, url)
    with Swarm(address, token=token or read_token(data_dir)) as swarm:
        swarm.shutdown()
    show({"stopped": address}, f"stopped {address}", as_json=as_json)


def _find(data_dir: Path, url: str | None) -> str:
    if url:
        return url
    found = read_url(data_dir)
    if found is None:
        raise ConfigError(f"no server runs in {data_dir}; give its --url, or its --data-dir", field="url")
    return found


def _describe(view: StatusView) -> str:
    pool = view.pool
    lines = [
        f"state     {view.state} ({view.cause})",
        f"model     {view.model or '-'}   weights {view.weight_version}   steps {view.step}",
        f"episodes  {pool.open_episodes} open, {pool.finished_episodes} wait for a batch, {pool.stale_episodes} stale",
        f"why       {view.why}",
        f"calls     {view.requests_running} running, {view.requests_waiting} waiting",
    ]
    if pool.sources:
        told = (f"{one.source} {one.complete} of {one.quota} ({one.open_episodes} open)" for one in pool.sources)
        lines.append(f"sources   {', '.join(told)}")
    if view.last_step:
        lines += describe_step(view.last_step)
    return "\n".join(lines)


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
