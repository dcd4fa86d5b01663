"""`ajet server`: start, look at and stop a swarm server."""

import contextlib
import logging
import os
from pathlib import Path

import click

from ajet_cli.commands.connection import FILE, Connection, connects, data_dir_option
from ajet_cli.commands.datafolder import age
from ajet_cli.jobfile import is_given, load_job
from ajet_cli.laststep import describe_step
from ajet_cli.output import OneLine, json_option, show
from ajet_cli.spawn import spawn_server
from ajet_core.errors import ConfigError
from ajet_core.status import JanitorAction, JanitorView, StatusView

_ANSWER_TIMEOUT_S = 5.0


@click.group()
def server() -> None:
    """Start, look at and stop a swarm server."""


@server.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--job", "job_file", type=click.Path(path_type=Path, dir_okay=False), help="Job file (YAML).")
@data_dir_option
@click.option(
    "--tls-cert", type=FILE, help="Speak HTTPS with this certificate (PEM, with those between it and its CA)."
)
@click.option("--tls-key", type=FILE, help="Key of --tls-cert (PEM, without a password).")
@click.option("--tls-client-ca", type=FILE, help="Let only clients in whose certificate one of these signed (PEM).")
@click.option("--require-token", is_flag=True, help="Ask for a token on loopback too: this machine has other users.")
@click.option("--detach", is_flag=True, help="Run in the background, log into the data folder.")
@click.argument("overrides", nargs=-1)
@json_option
def start(
    host: str,
    port: int,
    job_file: Path | None,
    data_dir: Path,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    require_token: bool,
    detach: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start a server. Without a job it goes on with the data folder's, or waits for one.

    OVERRIDES are key=value pairs over the job file, or the data folder's job: optimizer.learning_rate=5e-4
    """
    if detach:
        files = {"--job": job_file, "--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-client-ca": tls_client_ca}
        given = [text for option, file in files.items() if file for text in (option, str(file))]
        flags = ["--require-token"] if require_token else []
        arguments = ["--host", host, "--port", str(port), *given, *flags, *overrides]
        spawned = spawn_server(data_dir, arguments)
        pid = spawned.process.pid
        text = f"listening on {spawned.url} (process {pid}); log in {spawned.log}"
        show({"url": spawned.url, "pid": pid, "log": str(spawned.log)}, text, as_json=as_json)
        return
    try:
        from ajet_server.app import serve
        from ajet_server.datadir import stored_job
        from ajet_server.settings import ServerSettings
        from ajet_server.tls import read_tls
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server is not installed here ({error}); install ajet-cli[server]") from error
    job = None
    if is_given(job_file, overrides, os.environ):
        job = load_job(job_file, overrides, os.environ, stored_job(data_dir))
    tls = read_tls(tls_cert, tls_key, tls_client_ca)
    settings = ServerSettings(host, port, data_dir, job, tls=tls, require_token=require_token)
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
@connects
@json_option
def status(connection: Connection, as_json: bool) -> None:
    """Say what the server does, or why nothing trains now."""
    with connection.swarm(_ANSWER_TIMEOUT_S) as swarm:
        view = swarm.status()
    show(view.model_dump(mode="json"), _describe(view), as_json=as_json)


@server.command()
@connects
@json_option
def janitor(connection: Connection, as_json: bool) -> None:
    """Say which episodes the server expired, set aside or dropped by itself, when and why."""
    with connection.swarm(_ANSWER_TIMEOUT_S) as swarm:
        view = swarm.janitor()
    show(view.model_dump(mode="json"), _describe_janitor(view), as_json=as_json)


@server.command()
@connects
@json_option
def stop(connection: Connection, as_json: bool) -> None:
    """End the server in order. Nothing that was acknowledged is lost."""
    with connection.swarm() as swarm:
        swarm.shutdown()
    show({"stopped": connection.url}, f"stopped {connection.url}", as_json=as_json)


def _describe(view: StatusView) -> str:
    pool = view.pool
    lines = [
        f"state     {view.state} ({view.cause})",
        f"model     {view.model or '-'}   weights {view.weight_version}   steps {view.step}",
        f"episodes  {pool.open_episodes} open, {pool.finished_episodes} wait for a batch, {pool.stale_episodes} stale",
        f"why       {view.why}",
        f"calls     {view.requests_running} running, {view.requests_waiting} waiting, "
        f"{view.requests_continued} went on with new weights, {view.requests_recalled} began again",
    ]
    if pool.sources:
        told = (f"{one.source} {one.complete} of {one.quota} ({one.open_episodes} open)" for one in pool.sources)
        lines.append(f"sources   {', '.join(told)}")
    if view.last_step:
        lines += describe_step(view.last_step)
    return "\n".join(lines)


def _describe_janitor(view: JanitorView) -> str:
    seen = "not yet" if view.last_round_at is None else f"{age(view.last_round_at)} ago"
    counts = f"expired {view.expired}   set aside {view.set_aside}   dropped {view.dropped}   failed {view.failed}"
    actions = [f"{age(action.at):>5} ago  {action.deed:<9}  {_about(action)}" for action in view.actions]
    return "\n".join([f"rounds    {view.rounds}, the last {seen}", f"episodes  {counts}", *actions])


def _about(action: JanitorAction) -> str:
    return f"{action.episode_id}: {action.reason}" if action.episode_id else action.reason


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
