"""`read_records`, `write_records` and the like: which format a path means, and whole files only."""

import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, TypeAlias, TypeVar

from ajet_merge.call import Call
from ajet_merge.errors import MergeError

from .delta import find_extended, shorten
from .jsonl import JsonlSink, read_jsonl
from .parquet import ParquetSink, read_parquet
from .record import ONE_FOR_ALL, Record, RecordReader, Row, to_row

Sink: TypeAlias = JsonlSink | ParquetSink
Item = TypeVar("Item", Call, Record)

_COLUMNS = {
    "call_id": "str",
    "attempt_id": "str",
    "episode_id": "str",
    "group_id": "str",
    "compat_key": "str",
    "context_exact": "bool",
    "extends": "int32",
    "shared": "int32",
    "prompt_ids": "int32s",
    "completion_ids": "int32s",
    "logprobs": "float32s",
    "mask": "uint8s",
    "advantage": "float32s",
    "weight": "float32s",
    "messages": "json",
    "response": "json",
    "tools": "json",
    "message_ends": "int32s",
}


def read_records(
    path: str | os.PathLike[str], *, ignore: Collection[str] = (), on_progress: Callable[[float], object] | None = None
) -> list[Record]:
    """Read the calls of a file and their contexts.

    JSON lines are read one at a time and Parquet one row group at a time. From Parquet, ids stored as int32 and numbers
    stored as float32 are views of the file's decoded columns: nothing becomes a Python list.

    Args:
        path: a `.jsonl`, `.jsonl.gz` or `.parquet` file.
        ignore: keys of your own that are no part of a call; any other unknown key is an error.
        on_progress: called with the part of the file read so far, from 0 to 1.

    Returns:
        One record for each line or row, in their order; at least one.

    Raises:
        MergeError: the file or one of its records is not usable; names the file, the line (from 1) or row (from 0), the
            call, the key, the value and what would be right. Also if pyarrow is needed and missing.
    """
    path = Path(path)
    reader = RecordReader(ignore)
    try:
        for where, row in _rows(path, ignore, on_progress or _nothing):
            reader.add(row, where)
    except OSError as error:
        raise MergeError(f"{path} cannot be read: {error.strerror or error}") from error
    if not reader.records:
        raise MergeError(f"{path} holds no calls: give at least one")
    return reader.records


def write_records(path: str | os.PathLike[str], records: Iterable[Record], *, delta: bool = False) -> None:
    """Write calls and their contexts; an existing file is replaced once all of it is written.

    Args:
        path: where to; the suffix chooses the format: `.jsonl`, `.jsonl.gz` or `.parquet`.
        records: at least one. Taken one at a time, unless `delta` needs them all.
        delta: whether the prompt of a call that shares tokens with an earlier one is written as the index of that
            (`extends`), the number of shared tokens (`shared`) and the rest. Reading restores the same calls. Long
            conversations become about as small as the forest is.

    Raises:
        MergeError: nothing to write, something that is no `Record`, a context that is no JSON, the path cannot be
            written or has another suffix, or pyarrow is needed and missing. The path is then as it was before.
    """
    path = Path(path)
    checked = _all_of(Record, records, f"{path}: record", "give a Record, for example Record(call), or use write_calls")
    _write_records(path, checked, delta)


def _rows(path: Path, ignore: Collection[str], on_progress: Callable[[float], object]) -> Iterator[tuple[str, Row]]:
    if _format(path) == ".parquet":
        return read_parquet(path, ignore, on_progress)
    return read_jsonl(path, on_progress)


def read_calls(path: str | os.PathLike[str], *, ignore: Collection[str] = ()) -> list[Call]:
    """Read the calls of a file without their contexts; see `read_records`."""
    return [record.call for record in read_records(path, ignore=ignore)]


def write_calls(path: str | os.PathLike[str], calls: Iterable[Call], *, delta: bool = False) -> None:
    """Write calls that have no contexts; see `write_records`."""
    path = Path(path)
    checked = _all_of(Call, calls, f"{path}: call", "give a Call, or use write_records")
    _write_records(path, map(Record, checked), delta)


def _all_of(kind: type[Item], items: Iterable[Item], name: str, right: str) -> Iterator[Item]:
    for index, item in enumerate(items):
        if not isinstance(item, kind):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise MergeError(f"{name} {index} is a {type(item).__name__}: {right}")
        yield item


def _write_records(path: Path, records: Iterable[Record], delta: bool) -> None:
    rows = _delta_rows(list(records)) if delta else map(to_row, records)
    write_rows(path, rows, _COLUMNS, one_for_all=ONE_FOR_ALL)


def _delta_rows(records: list[Record]) -> Iterator[Row]:
    extended = find_extended([record.call for record in records])
    return (shorten(to_row(record), found) for record, found in zip(records, extended, strict=True))


def write_rows(path: Path, rows: Iterable[Row], columns: dict[str, str], one_for_all: Collection[str] = ()) -> None:
    """Write rows of any kind. `columns` are those of `ParquetSink`, `one_for_all` those of `JsonlSink`."""
    with _replacing(path) as file:
        count = 0
        with closing(_sink(path, file, columns, one_for_all)) as sink:
            for count, row in enumerate(rows, 1):
                try:
                    sink.write(row)
                except MergeError as error:
                    raise MergeError(f"{path}: record {count - 1}: {error}") from error
        if not count:
            raise MergeError(f"{path}: there is nothing to write; give at least one record")


def _sink(path: Path, file: IO[bytes], columns: dict[str, str], one_for_all: Collection[str]) -> Sink:
    if _format(path) == ".parquet":
        return ParquetSink(file, columns)
    return JsonlSink(file, gzipped=path.suffix == ".gz", one_for_all=one_for_all)


def _format(path: Path) -> str:
    for suffix in (".jsonl", ".jsonl.gz", ".parquet"):
        if path.name.endswith(suffix):
            return suffix
    raise MergeError(f"{path}: the suffix must be .jsonl, .jsonl.gz or .parquet")


@contextmanager
def _replacing(path: Path) -> Generator[IO[bytes]]:
    """A file beside `path` that takes its place if the block ends well, and is removed if not.

    Its name is no other writer's, and "x" opens nothing that is there already; a file of `tempfile` would be the
    user's alone to read.
    """
    _format(path)
    partial = path.with_name(f".{path.name}.{token_hex(8)}.partial")
    try:
        file = partial.open("xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # or a crash could leave half a file under the whole one's name
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise MergeError(f"{path} cannot be written: {error.strerror or error}") from error


def _nothing(part: float) -> None:
    pass
