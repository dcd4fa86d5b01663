"""`ajet policy`: what a batch policy would have done."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from ajet_cli.jobfile import load_job
from ajet_cli.output import json_option, show
from ajet_core.condition import UNITS, names
from ajet_core.config import Job
from ajet_core.config_batch import PolicyName
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_server.capture.history import History
    from ajet_server.episodes.replay import Replayed, Update


@click.group()
def policy() -> None:
    """Try batch policies on what was recorded."""


@policy.command()
@click.argument("ledger", type=click.Path(path_type=Path))
@click.option("--policy", "text", help="A policy's name, or a condition: 'groups >= 4 or waited > 10m'.")
@click.argument("overrides", nargs=-1)
@json_option
def simulate(ledger: Path, text: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say when each update would have happened.

    LEDGER is a ledger or the data folder it is in; a server may run on it. OVERRIDES are key=value pairs over the job
    in it: batch.size=8. Without --policy and OVERRIDES it is replayed as it was.
    """
    try:
        from ajet_server.capture.history import read_history
        from ajet_server.capture.reading import look
        from ajet_server.capture.steps import get_meta
        from ajet_server.datadir import ledger_path, read_job
        from ajet_server.episodes.replay import replay
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server is not installed here ({error}); install ajet-cli[server]") from error
    file = ledger_path(ledger) if ledger.is_dir() else ledger
    stored = read_job(look(file, lambda db: get_meta(db, "job")), file)
    if stored is None:
        raise ConfigError(f"{file} holds no job, so there is nothing to replay")
    job = load_job(None, [*_chosen(text), *overrides], {}, stored)
    history = look(file, read_history)
    found = replay(history, job)
    show(_data(found, history, job), _describe(found, history, job), as_json=as_json)


def _chosen(text: str | None) -> Iterable[str]:
    if text is None:
        return ()
    if text in get_args(PolicyName):
        return (f"batch.policy={text}", "batch.when=null")
    return (f"batch.when={json.dumps(text)}",)


def _data(found: "Replayed", history: "History", job: Job) -> dict[str, object]:
    return {
        "policy": job.batch.policy,
        "when": str(job.batch.condition),
        "updates": [
            {
                "due_at": update.due_at,
                "at": update.at,
                "groups": update.groups,
                "episodes": list(update.episode_ids),
                "facts": dict(update.facts),
            }
            for update in found.updates
        ],
        "waiting_for": found.left.waiting_for,
        "recorded_updates": len(history.batches),
    }


def _describe(found: "Replayed", history: "History", job: Job) -> str:
    start = history.occurrences[0].at if history.occurrences else history.end
    used = [name for name in UNITS if name in names(job.batch.condition)]
    rows = [_row(number, update, start, used) for number, update in enumerate(found.updates, start=1)]
    heading = f"{'update':>6}  {'due':>9}  {'taken':>9}  {'episodes':>8}  {'groups':>6}  because"
    return "\n".join(
        [
            f"policy    {job.batch.policy}, when {job.batch.condition}",
            *([heading, *rows] if rows else []),
            f"updates   {len(rows)} in {_clock(history.end - start)}; the server itself made {len(history.batches)}",
            f"at last   {found.left.waiting_for}",
        ]
    )


def _row(number: int, update: "Update", start: float, used: list[str]) -> str:
    facts = ", ".join(f"{name} {_fact(name, update.facts[name])}" for name in used)
    due, at = _clock(update.due_at - start), _clock(update.at - start)
    return f"{number:>6}  {due:>9}  {at:>9}  {len(update.episode_ids):>8}  {update.groups:>6}  {facts}"


def _fact(name: str, value: float) -> str:
    if UNITS[name] == "truth":
        return "yes" if value else "no"
    return f"{value:.0f}{'s' if UNITS[name] == 'time' else ''}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
