"""From a file of calls to a forest, and from what ajet-merge refuses to errors of ours."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from ajet_merge import Forest
    from ajet_merge.records import Record

WEIGHTS = ("token_mean", "sequence_mean", "episode_mean", "group_mean")
_LARGE_BYTES = 2**23
"""Reading less takes no time that one would watch."""


@contextmanager
def refusals() -> Generator[None]:
    """Whatever ajet-merge refuses inside becomes a `RequestError`.

    Raises:
        ConfigError: ajet-merge is not installed.
    """
    try:
        from ajet_merge import MergeError
    except ModuleNotFoundError as error:
        raise ConfigError(f"merging is not installed here ({error}); pip install 'ajet-cli[merge]'") from error
    try:
        yield
    except MergeError as error:
        raise RequestError(str(error)) from error


def read(file: Path, ignore: Sequence[str]) -> "list[Record]":
    """Reads the calls of a file; a large one with a progress bar on a terminal's stderr."""
    from ajet_merge.records import read_records

    if not (sys.stderr.isatty() and file.is_file() and file.stat().st_size >= _LARGE_BYTES):
        return read_records(file, ignore=ignore)
    with _progress_bar(f"reading {file.name}") as on_progress:
        return read_records(file, ignore=ignore, on_progress=on_progress)


def check_output(file: Path, out: Path | None) -> None:
    """Refuses to write over the file that is read.

    Raises:
        ConfigError: both are the same.
    """
    if out and out.resolve() == file.resolve():
        raise ConfigError(f"{out} is the file that is read; give another to write to")


@contextmanager
def _progress_bar(title: str) -> Generator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part: bar.update(task, completed=part)


def weighted_forest(records: "Sequence[Record]", weights: str | None) -> "Forest":
    """Merges the calls; with the weights of a mean over all of them if one is named."""
    import ajet_merge

    calls = [record.call for record in records]
    if weights:
        means = getattr(ajet_merge.weights, weights)(calls)
        calls = [replace(call, weight=mean) for call, mean in zip(calls, means, strict=True)]
    return ajet_merge.merge(calls)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises:
        ConfigError: there is none.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds a {type(found).__name__}; a JSON object is right")
    return found
