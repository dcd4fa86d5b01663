"""Tables and bars for a terminal."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from textwrap import TextWrapper
from typing import Any

from ajet_cli.output import printable

BAR_COLUMNS = 32
SHOWN_ROWS = 20


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, names: int = 1) -> str:
    """Returns a table, its first `names` columns aligned to the left and the numbers after them to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, title in enumerate(columns):
        made.add_column(title, justify="left" if index < names else "right", overflow="ellipsis", no_wrap=True)
    for row in rows:
        made.add_row(*map(_cell, row))
    return _rendered(made)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def bar(part: float, whole: float) -> str:
    """Returns a bar as long as `whole`, filled up to `part`; both 0 to 1, 1 being the longest bar there is."""
    full = max(round(whole * BAR_COLUMNS), 1)
    filled = min(max(round(part * BAR_COLUMNS), 1), full)
    return "█" * filled + "░" * (full - filled)


def counted(count: int, what: str) -> str:
    """Returns "1 call", "2,000 calls"."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def left_out(count: int, what: str) -> str | None:
    """Returns a line that says how many rows a table leaves out; None if none."""
    return f"... and {counted(count - SHOWN_ROWS, what)} more, all of them with --json" if count > SHOWN_ROWS else None


def wrote(file: str | None) -> str | None:
    """Returns a line that says what was written; None if nothing."""
    return f"wrote {file}" if file else None


def wrapped(text: str) -> str:
    """The text, made printable; for a terminal also with long lines broken and indented."""
    lines = printable(text).split("\n")
    if not sys.stdout.isatty():
        return "\n".join(lines)
    width = shutil.get_terminal_size().columns
    fill = TextWrapper(width, subsequent_indent="    ", break_on_hyphens=False, replace_whitespace=False).fill
    return "\n".join(line if len(line) <= width else fill(line) for line in lines)


def lines(*parts: str | None) -> str:
    """Returns the parts one below the other, without those that are None."""
    return "\n".join(part for part in parts if part is not None)


def _rendered(what: Any) -> str:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get().rstrip("\n")
