"""Linear rows in files, for trainers in other processes."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ajet_merge.timelines import Timeline

from .files import write_rows
from .record import Row

_COLUMNS = {
    "tokens": "int32s",
    "mask": "uint8s",
    "logprobs": "float32s",
    "advantage": "float32s",
    "weight": "float32s",
    "calls": "int32s",
    "context_exact": "bool",
}


def write_timelines(path: str | os.PathLike[str], timelines: Iterable[Timeline]) -> None:
    """Write linear rows, one a line; an existing file is replaced once all of it is written.

    The keys are the fields of `Timeline` that a trainer needs: tokens, mask, logprobs, advantage, weight (one value for
    each token), calls (indices of the calls that were merged) and context_exact.

    Args:
        path: where to; the suffix chooses the format: `.jsonl`, `.jsonl.gz` or `.parquet`.
        timelines: at least one.

    Raises:
        MergeError: nothing to write, the path cannot be written or has another suffix, or pyarrow is missing.
    """
    write_rows(Path(path), map(_row, timelines), _COLUMNS)


def _row(timeline: Timeline) -> Row:
    row: Row = {name: getattr(timeline, name) for name in _COLUMNS}
    return row | {"calls": np.array(timeline.calls, np.int32)}
