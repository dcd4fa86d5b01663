"""The commands of `ajet merge`."""

from pathlib import Path

import click

from ajet_cli.commands.merge import explanation, packs, rows, source, stats
from ajet_cli.output import json_option, show

_file = click.argument("file", type=click.Path(path_type=Path))
_ignore = click.option("--ignore", multiple=True, metavar="KEY", help="Key of your own in FILE; may be given again.")
_weights = click.option(
    "--weights", type=click.Choice(source.WEIGHTS), help="Replace the loss weights in FILE by those of this mean."
)


@click.group()
def merge() -> None:
    """Merge captured calls into a prefix forest.

    FILE holds one call a line (.jsonl, .jsonl.gz) or row (.parquet): prompt_ids, completion_ids, logprobs and, where
    you have them, mask, advantage, weight, call_id, episode_id, group_id, compat_key, messages and the like.
    """


@merge.command("stats")
@_file
@click.option(
    "--model-config", type=click.Path(path_type=Path), help="config.json of the model, to estimate its FLOPs by."
)
@_ignore
@json_option
def stats_command(file: Path, model_config: Path | None, ignore: tuple[str, ...], as_json: bool) -> None:
    """Count what training FILE runs forward: call by call, as rows, and as a forest."""
    with source.refusals():
        found = stats.measure(source.read(file, ignore), model_config)
        show(found, stats.describe(found), as_json=as_json)


@merge.command("explain")
@_file
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json, or a folder with one.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write the report as a web page.")
@_ignore
@json_option
def explain_command(
    file: Path, tokenizer: Path | None, html: Path | None, ignore: tuple[str, ...], as_json: bool
) -> None:
    """Say where calls of FILE left the path of earlier ones, why, and what that costs."""
    source.check_output(file, html)
    with source.refusals():
        decoder = explanation.open_tokenizer(tokenizer) if tokenizer else None
        found = explanation.explain(source.read(file, ignore), decoder)
        if html:
            explanation.write_html(found, html)
        show(explanation.summary(found, html), explanation.describe(found, html), as_json=as_json)


@merge.command("rows")
@_file
@click.option("--out", type=click.Path(path_type=Path), help="Write the rows: .jsonl, .jsonl.gz or .parquet.")
@_weights
@_ignore
@json_option
def rows_command(file: Path, out: Path | None, weights: str | None, ignore: tuple[str, ...], as_json: bool) -> None:
    """Merge FILE into linear rows, for trainers without tree attention."""
    source.check_output(file, out)
    with source.refusals():
        forest = source.weighted_forest(source.read(file, ignore), weights)
        found = rows.build(forest, out)
        show(found, rows.describe(found), as_json=as_json)


@merge.command("packs")
@_file
@click.option("--budget", type=click.IntRange(min=2), required=True, help="Most tokens in a pack.")
@click.option("--max-path", type=click.IntRange(min=1), help="Most tokens in a call.  [default: the budget]")
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks to spread packs over.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the arrays of all packs: .npz.")
@_weights
@_ignore
@json_option
def packs_command(
    file: Path,
    budget: int,
    max_path: int | None,
    ranks: int,
    out: Path | None,
    weights: str | None,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Merge FILE and cut the forest into packs, for tree attention."""
    source.check_output(file, out)
    with source.refusals():
        forest = source.weighted_forest(source.read(file, ignore), weights)
        found = packs.build(forest, budget, max_path, ranks, out)
        show(found, packs.describe(found), as_json=as_json)
