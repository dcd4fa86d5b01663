"""The live view of a quickstart: one screen that is redrawn while the model learns."""

import time

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ajet_cli.quickstart.progress import Progress, Update

_PER_SECOND = 4


def live_view(progress: Progress, console: Console) -> Live:
    """Returns a view that reads `progress` a few times a second while it is entered."""
    started = time.monotonic()
    spinner = Spinner("dots")

    def draw() -> RenderableType:
        with progress.lock:
            return Group(_headline(progress, spinner, time.monotonic() - started), updates_table(progress))

    return Live(get_renderable=draw, console=console, refresh_per_second=_PER_SECOND)


def _headline(progress: Progress, spinner: Spinner, seconds: float) -> RenderableType:
    text = Text.assemble(
        (f"{progress.state.value:<9}", "bold cyan"),
        f" {progress.stage or progress.cause}\n",
        f"episodes  {progress.finished} finished, {progress.opened - progress.finished - progress.lost} open, "
        f"{progress.lost} lost     {seconds:.0f} s",
    )
    spinner.update(text=text)
    return spinner


def updates_table(progress: Progress) -> Table:
    """Returns one row for each set of weights: the reward they earn, and what the update after them cost."""
    table = Table(
        title="reward under each weight version; tokens and seconds of the update that followed",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0),
    )
    for name in ("weights", "reward", "tokens", "merged", "saved", "roll", "merge", "update", "save", "sync"):
        table.add_column(name, justify="right", no_wrap=True)
    count = max(len(progress.rounds), len(progress.updates))
    for index in range(count):
        reward = f"{progress.rewards[index]:.3f}" if index < len(progress.rounds) else "…"
        update = progress.updates[index] if index < len(progress.updates) else None
        table.add_row(str(index), reward, *_cells(update))
    return table


def _cells(update: Update | None) -> tuple[str, ...]:
    if update is None:
        return ()
    report = update.report
    seconds = report.seconds
    return (
        str(report.tokens_unmerged),
        str(report.tokens_forest),
        f"{report.tokens_unmerged / max(report.tokens_forest, 1):.1f}x",
        f"{update.rollout_s:.1f}",
        f"{seconds.get('merge', 0) + seconds.get('pack', 0):.2f}",
        f"{seconds.get('update', 0):.1f}",
        f"{seconds.get('checkpoint', 0):.1f}",
        "…" if update.sync_s is None else f"{update.sync_s:.1f}",
    )
