"""The commands of `ajet episodes`."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ajet_cli.commands.connection import Connection, trust_options
from ajet_cli.commands.datafolder import data_dir_argument, data_dir_option, need_server, progress
from ajet_cli.output import json_option, show
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_server.capture.browse import EpisodeFilter

F = TypeVar("F", bound=Callable[..., Any])


def _filters(statuses: tuple[str, ...], verb: str) -> Callable[[F], F]:
    """Options that say which episodes."""

    def add(command: F) -> F:
        for option in (
            click.option("--task", help="Only those of this task id."),
            click.option("--group", help="Only those of this group id."),
            click.option(
                "--kind", type=click.Choice([kind.value for kind in EpisodeKind]), help="Only those of this kind."
            ),
            click.option(
                "--status",
                "statuses",
                type=click.Choice([status.value for status in EpisodeStatus]),
                multiple=True,
                default=statuses,
                show_default=bool(statuses),
                help=f"Which to {verb}; may be given again.",
            ),
        ):
            command = option(command)
        return command

    return add


def _wanted(statuses: tuple[str, ...], kind: str | None, group: str | None, task: str | None) -> "EpisodeFilter":
    from ajet_server.capture.browse import EpisodeFilter

    return EpisodeFilter(tuple(map(EpisodeStatus, statuses)), None if kind is None else EpisodeKind(kind), group, task)


@click.group()
def episodes() -> None:
    """Look at the episodes of a server's data folder, and resolve those in doubt.

    To look, the ledger is read from the disk and not changed; the server may run meanwhile.
    """


@episodes.command("ls")
@data_dir_argument
@_filters((), "list")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="List at most so many.")
@json_option
def ls_command(
    data_dir: Path,
    statuses: tuple[str, ...],
    kind: str | None,
    group: str | None,
    task: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the episodes in DATA_DIR, the newest first."""
    need_server()
    from ajet_cli.commands.episodes import listing
    from ajet_server.capture.reading import look
    from ajet_server.datadir import ledger_path

    wanted = _wanted(statuses, kind, group, task)
    found = look(ledger_path(data_dir), lambda db: listing.collect(db, wanted, limit))
    show(found, listing.describe(found), as_json=as_json)


@episodes.command("show")
@click.argument("episode")
@data_dir_option
@click.option("--explain", is_flag=True, help="Also say where and why calls left the path of earlier ones.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="With --explain: a tokenizer.json, or a folder with one.  [default: that of the job's model]",
)
@click.option("--full", is_flag=True, help="Do not shorten messages.")
@json_option
def show_command(
    episode: str, data_dir: Path, explain: bool, tokenizer: Path | None, full: bool, as_json: bool
) -> None:
    """Show EPISODE: its calls as a conversation, their tokens, and the forest that they become."""
    if tokenizer and not explain:
        raise ConfigError("--tokenizer has no effect without --explain", field="tokenizer")
    need_server()
    from ajet_cli.commands.episodes import conversation
    from ajet_cli.commands.merge import source
    from ajet_server.capture.browse import read_episode
    from ajet_server.capture.reading import look
    from ajet_server.datadir import ledger_path

    line, calls = look(ledger_path(data_dir), lambda db: read_episode(db, episode))
    with source.refusals():
        explanation = conversation.explain(line, calls, data_dir, tokenizer) if explain and calls else None
        found = conversation.collect(line, calls, explanation)
        text = conversation.describe(found, explanation, full=full)
    show(found, text, as_json=as_json)


@episodes.command("passk")
@data_dir_argument
@click.option("--k", "ks", help="Values of k, as 1,4,16.  [default: 1, 2, 4, ... as far as a task has episodes]")
@click.option("--success", type=float, default=1.0, show_default=True, help="The least reward that is a success.")
@click.option("--task", help="Only this task id.")
@json_option
def passk_command(data_dir: Path, ks: str | None, success: float, task: str | None, as_json: bool) -> None:
    """Tell pass@k of the eval episodes in DATA_DIR, by weight version.

    A task with fewer than k finished episodes is left out; a lost episode is none without success.
    """
    need_server()
    from ajet_cli.commands.episodes import passk
    from ajet_server.capture.reading import look
    from ajet_server.datadir import ledger_path

    wanted = _numbers(ks) if ks is not None else []
    found = look(ledger_path(data_dir), lambda db: passk.collect(db, success, wanted, task))
    show(passk.as_dict(found, success), passk.describe(found), as_json=as_json)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--k: {text!r} is no list of whole numbers from 1 on, as 1,4,16", field="k")
    return [int(part) for part in parts]


@episodes.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@data_dir_option
@_filters((EpisodeStatus.FINISHED.value,), "export")
@click.option(
    "--episodes", "labels", type=click.Path(path_type=Path), help="Also write rewards and metrics: .jsonl[.gz]."
)
@json_option
def export_command(
    file: Path,
    data_dir: Path,
    statuses: tuple[str, ...],
    kind: str | None,
    group: str | None,
    task: str | None,
    labels: Path | None,
    as_json: bool,
) -> None:
    """Write the calls of episodes into FILE (.jsonl, .jsonl.gz or .parquet), which `ajet merge` reads.

    Advantages are 0: they depend on the batch. Rewards are written beside the calls with --episodes.
    """
    need_server()
    from ajet_server.capture.export import check_episodes_file
    from ajet_server.capture.reading import look
    from ajet_server.datadir import ledger_path

    if labels:
        check_episodes_file(labels)
        if labels.resolve() == file.resolve():
            raise ConfigError(f"{labels} cannot hold both calls and episodes; give two files")
    wanted = _wanted(statuses, kind, group, task)
    found = look(ledger_path(data_dir), lambda db: _export(db, wanted, file, labels))
    show(found, _describe(found), as_json=as_json)


def _export(db: Any, wanted: "EpisodeFilter", file: Path, labels: Path | None) -> dict[str, Any]:
    from ajet_server.capture.browse import count_episodes
    from ajet_server.capture.export import export_calls, export_episodes

    total = count_episodes(db, wanted)
    with progress(f"writing {file.name}") as on_progress:
        done = export_calls(db, wanted, file, lambda looked_at: on_progress(looked_at, total))
    if labels:
        export_episodes(db, done.episode_ids, labels)
    counts = asdict(done) | {"episodes": len(done.episode_ids)}
    counts.pop("episode_ids")
    return counts | {"file": str(file), "episodes_file": str(labels) if labels else None}


def _describe(found: dict[str, Any]) -> str:
    from ajet_cli.commands.merge.drawing import counted, lines, wrote

    dropped = f"{counted(found['dropped'], 'episode')} left out: what the calls held was dropped (retention)"
    counts = f"{counted(found['calls'], 'call')} of {counted(found['episodes'], 'episode')}, {found['tokens']:,} tokens"
    return lines(counts, dropped if found["dropped"] else None, wrote(found["file"]), wrote(found["episodes_file"]))


@episodes.command("resolve")
@click.argument("urls", nargs=-1, required=True, metavar="URL URL...")
@click.option("--token", default=None, envvar="AJET_TOKEN", help="Client token of the servers, if they want one.")
@trust_options
@json_option
def resolve_command(
    urls: tuple[str, ...],
    token: str | None,
    ca_file: Path | None,
    client_cert: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Bring decisions to episodes in doubt: those whose client died while it finished them on several servers.

    URL are the servers, the deciding one among them. Harmless at any time, and again.
    """
    from ajet_cli.commands.episodes import resolution

    found = resolution.collect([Connection(url, token, ca_file, client_cert) for url in urls])
    show(found, resolution.describe(found), as_json=as_json)
