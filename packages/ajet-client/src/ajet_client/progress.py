"""The progress of a run on standard error: a bar if `rich` is installed (`ajet-client[progress]`), else one line."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeAlias

from ajet_client.report import RunReport

Show: TypeAlias = Callable[[RunReport], None]


@contextmanager
def progress_bar(enabled: bool, total: int | None) -> Generator[Show]:
    """Shows the progress for a `with` block, and yields the function that updates it.

    Args:
        enabled: show it at all.
        total: how many episodes there will be; None if unknown.
    """
    if not enabled:
        yield lambda report: None
        return
    with (_bar if find_spec("rich") else _line)(total) as show:
        yield show


def expected_total(tasks: object, group_size: int) -> int | None:
    """Returns the number of episodes, if the tasks can tell how many they are."""
    try:
        return len(tasks) * group_size  # type: ignore[arg-type]
    except TypeError:
        return None


@contextmanager
def _bar(total: int | None) -> Generator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task("waiting for the first episode", total=total)
        yield lambda report: bar.update(
            line, completed=report.finished + report.failed, description=_describe(report, total)
        )


@contextmanager
def _line(total: int | None) -> Generator[Show]:
    """Rewrites one line of a terminal; into a file goes only the last state of it."""
    stream, text = sys.stderr, ""
    rewritten = stream.isatty()

    def show(report: RunReport) -> None:
        nonlocal text
        text = _describe(report, total)
        if rewritten:
            stream.write(f"\r\x1b[K{text}")
            stream.flush()

    try:
        yield show
    finally:
        if text:
            stream.write("\n" if rewritten else f"{text}\n")
            stream.flush()


def _describe(report: RunReport, total: int | None) -> str:
    mean = report.reward_mean
    done = f"{report.finished}" if total is None else f"{report.finished}/{total}"
    text = f"{done} done, {report.failed} failed"
    return text if mean is None else f"{text}, mean reward {mean:.3g}"
