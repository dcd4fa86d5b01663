"""Which data folder a command reads, and what it needs to read it."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from ajet_core.errors import ConfigError

_DEFAULT_DIR = Path(".ajet")
_VARIABLE = "AJET_DATA_DIR"


def _folder(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    if str(value).startswith(("http:", "https:")):
        raise ConfigError("a ledger is read from the disk, not from a URL; give the data folder of that server")
    return value


data_dir_argument = click.argument(
    "data_dir", type=click.Path(path_type=Path), default=_DEFAULT_DIR, envvar=_VARIABLE, callback=_folder
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=_DEFAULT_DIR,
    show_default=True,
    envvar=_VARIABLE,
    callback=_folder,
    help="Folder of the ledger. A server may run on it.",
)


def need_server() -> None:
    """Raises `ConfigError` unless the package that reads ledgers is installed."""
    if find_spec("ajet_server") is None:
        raise ConfigError("ledgers are read by ajet-server, which is not installed here; install ajet-cli[server]")


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr; yields what to call with the work done and all of it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def age(seconds: float | None) -> str:
    """How long ago a time in seconds since 1970 was: 5s, 12m, 3h, 8d."""
    if seconds is None:
        return ""
    gone = max(time.time() - seconds, 0.0)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if gone >= size:
            return f"{gone / size:.0f}{unit}"
    return f"{gone:.0f}s"


def megabytes(count: int) -> str:
    """Returns "1.2 MB"."""
    return f"{count / 1e6:,.1f} MB"
