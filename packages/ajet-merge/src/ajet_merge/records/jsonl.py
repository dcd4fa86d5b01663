"""Rows as JSON lines, one object a line, plain or gzipped."""

import gzip
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ajet_merge._arrays import FloatArray
from ajet_merge.errors import MergeError

from .record import Row
from .strictjson import dump, parse, shown


class JsonlSink:
    """Writes rows to an open file.

    Args:
        file: a binary file.
        gzipped: whether to compress; equal rows give equal bytes.
        one_for_all: keys whose numbers are written as one number where they are all equal.
    """

    def __init__(self, file: IO[bytes], *, gzipped: bool, one_for_all: Collection[str] = ()) -> None:
        self._file = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) if gzipped else file
        self._gzipped = gzipped
        self._one_for_all = one_for_all

    def write(self, row: Row) -> None:
        """Write one row as one line.

        Raises:
            MergeError: a value is no JSON; names the key.
        """
        pairs = [f'"{key}":{dump(key, self._plain(key, value))}' for key, value in row.items()]
        self._file.write(f"{{{','.join(pairs)}}}\n".encode())

    def close(self) -> None:
        """Write what is held back. The file itself stays open."""
        if self._gzipped:
            self._file.close()

    def _plain(self, key: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        numbers: list[Any] = decimals(value) if value.dtype == np.float32 else value.tolist()
        constant = key in self._one_for_all and value.size and value.tobytes() == value[:1].tobytes() * value.size
        return numbers[0] if constant else numbers


def decimals(values: FloatArray) -> list[float]:
    """The shortest decimals that are read back as these float32 numbers: -0.1, not -0.10000000149011612."""
    short = values.astype(np.str_).astype(np.float64)
    # A decimal that rounds to a double half way between two float32 could round to the wrong one.
    exact = short.astype(np.float32) == values
    return np.where(exact, short, values).tolist()


def read_jsonl(path: Path, on_progress: Callable[[float], object]) -> Iterator[tuple[str, Row]]:
    """The rows of a file, each with the words that say where it stands.

    Args:
        path: a `.jsonl` or `.jsonl.gz` file.
        on_progress: called with the part of the file read so far, 0 to 1.
    """
    size, number = path.stat().st_size, 0
    with path.open("rb") as file:
        try:
            for number, line in enumerate(gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file, 1):
                where = f"{path}, line {number}"
                yield where, _row(line, where)
                on_progress(file.tell() / size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise MergeError(f"{path} is no gzip file, or damaged after line {number}: {error}") from error


def _row(line: bytes, where: str) -> Row:
    row = parse(line, where) if line.strip() else None
    if not isinstance(row, dict):
        raise MergeError(f"{where} is {shown(row) if line.strip() else 'empty'}: give one JSON object a line")
    return row
