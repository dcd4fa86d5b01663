"""`ajet run`: agents against a server, a function of a file or a program in any language."""

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ajet_cli.commands.connection import Connection, trust_options
from ajet_cli.interrupts import InterruptedRunError, interruptible
from ajet_cli.output import json_option, show
from ajet_client import CommandAgent, RunReport, Task, read_jsonl, repeat
from ajet_client.agents import AgentBase, Isolation
from ajet_core.errors import AjetError

_NOTHING_FINISHED = 1


@dataclass(frozen=True)
class _Agent:
    """What is run, and how, as `Swarm.run` wants it."""

    agent: str | AgentBase
    isolation: Isolation
    timeout: float | None


@click.command()
@click.argument("url")
@click.argument("agent", required=False)
@click.option("--cmd", "command", help="A program to run for each episode: --cmd 'node agent.js'. No shell reads it.")
@click.option(
    "--tasks", "tasks_file", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="The tasks, a JSON value a line.",
)  # fmt: skip
@click.option("--id-field", help="The field of a task that holds its name.")
@click.option(
    "--repeat", "times", default=1, show_default=True, type=click.IntRange(0),
    help="How often to run all tasks; 0: until Ctrl-C.",
)  # fmt: skip
@click.option("--seed", type=int, help="Shuffle the tasks, each time anew.")
@click.option("--group-size", type=click.IntRange(1), help="Episodes a task; by default as many as the job compares.")
@click.option("--concurrency", default=16, show_default=True, type=click.IntRange(1), help="Episodes at a time.")
@click.option("--kind", default="train", show_default=True, type=click.Choice(["train", "eval"]))
@click.option("--attempts", default=3, show_default=True, type=click.IntRange(1), help="Tries of an episode.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds that a process may take.")
@click.option(
    "--wait", default=600.0, show_default=True, type=click.FloatRange(0), help="Seconds to wait for an episode."
)
@click.option(
    "--isolation", default="thread", show_default=True, type=click.Choice(["thread", "process"]),
    help="Where a Python agent runs; with process a crash or a hang harms no other episode.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Load a Python agent anew when its file changes.")
@click.option("--token", envvar="AJET_TOKEN", help="The client token, if the server wants one.")
@trust_options
@json_option
def run(
    url: str,
    agent: str | None,
    *,
    command: str | None,
    tasks_file: Path,
    id_field: str | None,
    times: int,
    seed: int | None,
    group_size: int | None,
    concurrency: int,
    kind: str,
    attempts: int,
    timeout: float | None,
    wait: float,
    isolation: Isolation,
    watch: bool,
    token: str | None,
    ca_file: Path | None,
    client_cert: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Run an agent on tasks, against the server at URL.

    AGENT is "file.py:function", by default the function `agent`: called with an episode, it returns the reward. With
    --cmd it is any program instead: it finds OPENAI_BASE_URL, OPENAI_API_KEY and AJET_MODEL in its environment, reads
    the task from its standard input, and prints the reward in its last line.

    Ends with status 1 if no episode got a reward, and with 130 after Ctrl-C, which aborts what is open.
    """
    chosen = _choose(agent, command, isolation, timeout)
    tasks = _repeated(list(read_jsonl(tasks_file, id_field=id_field)), times, seed)
    report, stopped = RunReport(deque(maxlen=0)), None
    try:
        with interruptible(), Connection(url, token, ca_file, client_cert).swarm() as swarm:
            swarm.run(
                chosen.agent, tasks, group_size=group_size, concurrency=concurrency, kind=kind, attempts=attempts,
                wait=wait, isolation=chosen.isolation, timeout=chosen.timeout, watch=watch, on_result=report.add,
                keep_records=0,
            )  # fmt: skip
    except InterruptedRunError as interrupted:
        stopped = interrupted
    except AjetError:
        if report.attempts:
            click.echo(f"until then: {report}", err=True)
        raise
    _tell(report, stopped, as_json=as_json)


def _choose(agent: str | None, command: str | None, isolation: Isolation, timeout: float | None) -> _Agent:
    if (agent is None) == (command is None):
        raise click.UsageError("give either AGENT, a Python file, or --cmd, a program")
    if agent is not None:
        return _Agent(agent, isolation, timeout)
    return _Agent(CommandAgent(str(command), timeout=timeout), isolation, None)


def _repeated(tasks: list[Task], times: int, seed: int | None) -> Iterable[Task]:
    """One round stays a list, whose length a progress bar can show."""
    if times == 1 and seed is None:
        return tasks
    return repeat(tasks, times or None, seed=seed)


def _tell(report: RunReport, stopped: InterruptedRunError | None, *, as_json: bool) -> None:
    data: dict[str, Any] = {
        "finished": report.finished,
        "failed": report.failed,
        "attempts": report.attempts,
        "reward_mean": report.reward_mean,
        "metric_means": report.metric_means,
        "short_groups": report.short_groups,
        "stopped": stopped.signal_name if stopped else None,
    }
    metrics = "".join(f"\n{name}: {mean:.4g}" for name, mean in report.metric_means.items())
    show(data, f"{f'stopped by {stopped.signal_name}: ' if stopped else ''}{report}{metrics}", as_json=as_json)
    if stopped:
        sys.exit(stopped.status)
    if not report.finished:
        sys.exit(_NOTHING_FINISHED)
