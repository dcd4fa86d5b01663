"""The progress bar of a run. Rich is loaded only when a bar is shown."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

from ajet_client.report import RunReport

Show: TypeAlias = Callable[[RunReport], None]


@contextmanager
def progress_bar(enabled: bool, total: int | None) -> Generator[Show]:
    """Shows a bar on standard error for a `with` block, and yields the function that updates it.

    Args:
        enabled: show it at all.
        total: how many episodes there will be; None if unknown.
    """
    if not enabled:
        yield lambda report: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task("waiting for the first episode", total=total)
        yield lambda report: bar.update(
            line, completed=report.finished + report.failed, description=_describe(report, total)
        )


def expected_total(tasks: object, group_size: int) -> int | None:
    """Returns the number of episodes, if the tasks can tell how many they are."""
    try:
        return len(tasks) * group_size  # type: ignore[arg-type]
    except TypeError:
        return None


def _describe(report: RunReport, total: int | None) -> str:
    mean = report.reward_mean
    done = f"{report.finished}" if total is None else f"{report.finished}/{total}"
    text = f"{done} done, {report.failed} failed"
    return text if mean is None else f"{text}, mean reward {mean:.3g}"
