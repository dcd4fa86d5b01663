"""`ajet quickstart`."""

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import get_args

import click
from rich.console import Console

from ajet_cli.output import json_option
from ajet_cli.quickstart import report, setup
from ajet_cli.quickstart.live import live_view
from ajet_cli.quickstart.progress import Progress
from ajet_client import Swarm
from ajet_core.errors import AjetError

_RECONNECT_S = 2.0
_FOLLOWER_ENDS_S = 5.0
_SERVER_ENDS_S = 30.0


@click.command()
@click.option("--model", type=click.Path(path_type=Path, file_okay=False), help="Any Hugging Face model folder.")
@click.option("--tiny", is_flag=True, help="A random micro model, made on the spot: seconds, no language.")
@click.option("--updates", default=6, show_default=True, type=click.IntRange(1, 100), help="Updates at most.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31), help="Seeds tasks and sampling.")
@click.option(
    "--out", default=Path("quickstart-output"), show_default=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the run's own folder.",
)  # fmt: skip
@click.option(
    "--sharing", type=click.Choice(get_args(setup.Sharing)), default="auto", show_default=True,
    help="trainer.sharing of the job: `calls` computes every call alone, to compare with.",
)  # fmt: skip
@json_option
def quickstart(
    model: Path | None, *, tiny: bool, updates: int, seed: int, out: Path, sharing: setup.Sharing, as_json: bool
) -> None:
    """Train a small language model on this machine, through HTTP, and watch it learn."""
    if tiny and model:
        raise click.UsageError("--tiny makes its own model; leave --model out")
    console = Console(stderr=as_json)
    started = time.monotonic()
    plan = setup.prepare(out, model, tiny=tiny, updates=updates, seed=seed, sharing=sharing, log=console.print)
    console.print(f"model {plan.model}\nrun   {plan.folder}", soft_wrap=True, highlight=False)
    progress = Progress()
    console.print("starting the server (the model is loaded twice: engine and trainer)")
    # A polite end must end the server and the client too: as an exception it passes through what cleans up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _run(plan, progress, console)
    adapter = report.collect_adapter(plan)
    report.save_plot(progress, plan.folder / "reward.png")
    if as_json:
        click.echo(json.dumps(report.summary(progress, plan, adapter, time.monotonic() - started)))
    else:
        report.show_report(progress, plan, adapter, console)


def _run(plan: setup.Plan, progress: Progress, console: Console) -> None:
    server = setup.start_server(plan)
    follower = setup.in_thread(lambda: _follow(server.url, progress), "events")
    try:
        client = setup.ClientProcess(plan, server.url)
        try:
            with live_view(progress, console):
                for line in client.lines():
                    progress.add_round(line)
        finally:
            client.end()
    except BaseException:
        console.print(f"stopping the server; the run so far is in {plan.folder}", soft_wrap=True, highlight=False)
        raise
    finally:
        if server.process.poll() is None:
            with Swarm(server.url) as swarm:
                swarm.shutdown()
        server.process.wait(_SERVER_ENDS_S)
        follower.join(_FOLLOWER_ENDS_S)


def _follow(url: str, progress: Progress) -> None:
    # The stream breaks when the server ends, which is how a run ends: nothing to tell anybody.
    logging.getLogger("ajet_client").setLevel(logging.ERROR)
    try:
        with Swarm(url) as swarm:
            for event in swarm.events(timeout=_RECONNECT_S):
                progress.add_event(event)
    except AjetError:
        return
