"""`ajet ledger`: whether a ledger is what it should be, and forgetting what is no longer needed."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ajet_cli.commands.datafolder import data_dir_argument, megabytes, need_server, progress
from ajet_cli.output import json_option, show
from ajet_core.config import CheckpointConfig
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_server.audit import Audit
    from ajet_server.capture.retention import Dropped, Rule


@click.group()
def ledger() -> None:
    """Check the ledger of a data folder, and make it smaller."""


@ledger.command("check")
@data_dir_argument
@json_option
@click.pass_context
def check_command(ctx: click.Context, data_dir: Path, as_json: bool) -> None:
    """Check the ledger and the checkpoints in DATA_DIR; exit with 1 if anything is wrong.

    Nothing is changed or repaired, and a server may run meanwhile.
    """
    need_server()
    from ajet_server.audit import audit

    with progress("checking calls") as on_progress:
        found = audit(data_dir, on_progress)
    show({"ok": not found.found} | asdict(found), _describe(found), as_json=as_json)
    ctx.exit(1 if found.found else 0)


def _describe(found: "Audit") -> str:
    from ajet_cli.commands.merge.drawing import counted, left_out, lines

    looked_at = (
        f"{counted(found.episodes, 'episode')}, {counted(found.calls, 'call')}, {counted(found.batches, 'update')}, "
        f"{counted(found.checkpoints, 'checkpoint')}"
    )
    if not found.found:
        return f"{looked_at}; nothing is wrong"
    shown = [str(problem) for problem in found.problems[:20]]
    return lines(f"{looked_at}; {counted(found.found, 'problem')}", *shown, left_out(found.found, "problem"))


@ledger.command("prune")
@data_dir_argument
@click.option(
    "--trained-episodes", type=click.IntRange(min=0), help="Keep what calls hold of so many trained episodes."
)
@click.option("--days", type=click.FloatRange(min=0), help="Keep it for so many days after an episode was closed.")
@click.option("--dry-run", is_flag=True, help="Only say what would go; a server may run meanwhile.")
@json_option
def prune_command(
    data_dir: Path, trained_episodes: int | None, days: float | None, dry_run: bool, as_json: bool
) -> None:
    """Drop what old calls in DATA_DIR hold: token ids, log-probabilities, messages. Rewards, sizes and reports stay.

    Without options the `retention` of the job says what may go. A running server does that by itself, so it must be
    stopped for this. Episodes that are open, wait or are being trained are never touched, nor are those of the latest
    steps (`checkpoint.keep`).
    """
    need_server()
    from ajet_server.datadir import ledger_path

    rule, file = _rule(data_dir, trained_episodes, days), ledger_path(data_dir)
    before = file.stat().st_size
    dropped = _would_drop(file, rule) if dry_run else _drop(data_dir, rule)
    after = file.stat().st_size
    found = asdict(dropped) | {"dry_run": dry_run, "file_bytes_before": before, "file_bytes": after}
    show(found, _describe_dropped(found), as_json=as_json)


def _rule(data_dir: Path, trained_episodes: int | None, days: float | None) -> "Rule":
    """What the options say, and the job where they say nothing."""
    from ajet_server.capture.reading import look
    from ajet_server.capture.retention import Rule
    from ajet_server.datadir import ledger_path, stored_job

    look(ledger_path(data_dir), lambda db: None)  # a folder without a ledger is told before anything is made
    job = stored_job(data_dir)
    rule = Rule.of(job) if job else Rule(None, None, CheckpointConfig().keep)
    if trained_episodes is not None or days is not None:
        rule = Rule(trained_episodes, days, rule.redo_steps)
    if not rule.bounded:
        raise ConfigError(
            "nothing says what may go: give --trained-episodes or --days, or put `retention` into the job",
            field="retention",
        )
    return rule


def _would_drop(file: Path, rule: "Rule") -> "Dropped":
    import time

    from ajet_server.capture.reading import look
    from ajet_server.capture.retention import droppable, sizes

    return look(file, lambda db: sizes(db, droppable(db, rule, time.time())))


def _drop(data_dir: Path, rule: "Rule") -> "Dropped":
    from ajet_server.capture.ledger import Ledger
    from ajet_server.capture.retention import compact, prune
    from ajet_server.datadir import DataDir

    folder = DataDir(data_dir)
    try:
        with Ledger(folder.ledger_file) as opened:
            dropped = prune(opened, rule)
        compact(folder.ledger_file)
    finally:
        folder.close()
    return dropped


def _describe_dropped(found: dict[str, Any]) -> str:
    from ajet_cli.commands.merge.drawing import counted

    what = f"what {counted(found['calls'], 'call')} of {counted(found['episodes'], 'episode')} hold"
    if found["dry_run"]:
        return f"would drop {what} ({megabytes(found['bytes'])}); nothing was changed"
    return (
        f"dropped {what} ({megabytes(found['bytes'])}); "
        f"the file had {megabytes(found['file_bytes_before'])}, now {megabytes(found['file_bytes'])}"
    )
