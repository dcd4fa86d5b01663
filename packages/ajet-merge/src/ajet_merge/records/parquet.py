"""Rows as Parquet, with pyarrow. Numbers are read as views of Arrow's buffers, without Python lists in between."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ajet_merge._arrays import AnyArray
from ajet_merge.errors import MergeError

from .record import JSON_KEYS, NAME_KEYS, Row, find_unknown, whole
from .strictjson import dump, parse, shown
from .structs import from_structs

ROW_GROUP_NUMBERS = 2**22
"""A row group is closed when it holds so many numbers: some tens of megabytes in memory."""
PAGE_BYTES = 2**24
"""Pages are compressed one by one: in large ones, prompts that repeat each other become small."""


def arrow() -> Any:
    """The module pyarrow.

    Raises:
        MergeError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet  # pyright: ignore[reportUnusedImport] - what `pyarrow.parquet` below is
    except ModuleNotFoundError as error:
        raise MergeError(
            f"Parquet files need pyarrow ({error}): pip install ajet-merge[parquet], or use a .jsonl file"
        ) from error
    return pyarrow


class ParquetSink:
    """Writes rows to an open file, row group by row group.

    Args:
        file: a binary file.
        columns: names and types: "str", "bool", "int32", "json" (any JSON value, as a string), or "int32s", "float32s"
            and "uint8s" for one-dimensional arrays.
    """

    def __init__(self, file: IO[bytes], columns: dict[str, str]) -> None:
        self._pa = arrow()
        self._columns = columns
        self._schema = self._pa.schema([(name, self._type(kind)) for name, kind in columns.items()])
        # Where the bytes of 4-byte numbers stand apart, zstd finds more; dictionaries are for strings that repeat.
        apart = [f"{name}.list.element" for name, kind in columns.items() if kind in ("int32s", "float32s")]
        repeating = [name for name, kind in columns.items() if kind == "str"]
        self._writer = self._pa.parquet.ParquetWriter(
            file, self._schema, compression="zstd", compression_level=3, data_page_size=PAGE_BYTES,
            use_dictionary=repeating, use_byte_stream_split=apart,
        )  # fmt: skip
        self._rows: list[Row] = []
        self._numbers = 0

    def write(self, row: Row) -> None:
        """Write one row, now or with later ones.

        Raises:
            MergeError: a value is no JSON, or no Unicode; names the key.
        """
        self._rows.append({key: _encoded(self._columns[key], key, value) for key, value in row.items()})
        self._numbers += sum(value.size for value in row.values() if isinstance(value, np.ndarray))
        if self._numbers >= ROW_GROUP_NUMBERS:
            self._flush()

    def close(self) -> None:
        """Write what is held back, and the footer. The file itself stays open."""
        if self._rows:
            self._flush()
        self._writer.close()

    def _type(self, kind: str) -> Any:
        if kind.endswith("s"):
            return self._pa.list_(getattr(self._pa, kind[:-1])())
        return {"bool": self._pa.bool_, "int32": self._pa.int32}.get(kind, self._pa.string)()

    def _flush(self) -> None:
        columns = [
            self._column([row.get(name) for row in self._rows], self._schema.field(name).type) for name in self._columns
        ]
        self._writer.write_table(self._pa.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._numbers = [], 0

    def _column(self, values: list[Any], kind: Any) -> Any:
        if not self._pa.types.is_list(kind):
            return self._pa.array(values, kind)
        sizes = [0 if value is None else value.size for value in values]
        flat = np.concatenate([value for value in values if value is not None] or [np.empty(0, np.int32)])
        offsets = self._pa.array(np.cumsum([0, *sizes]), self._pa.int32())
        absent = self._pa.array([value is None for value in values])
        return self._pa.ListArray.from_arrays(offsets, self._pa.array(flat, kind.value_type), mask=absent)


def _encoded(kind: str, key: str, value: Any) -> Any:
    if kind == "json":
        return dump(key, value)
    if kind == "str":
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MergeError(f"{key} = {shown(value)} is no Unicode text, which Parquet needs: {error}") from error
    return value


def read_parquet(
    path: Path, ignore: Collection[str], on_progress: Callable[[float], object]
) -> Iterator[tuple[str, Row]]:
    """The rows of a file, each with the words that say where it stands; any value may be None.

    Args:
        path: a `.parquet` file.
        ignore: columns not to read.
        on_progress: called with the part of the file read so far, 0 to 1.
    """
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = _names(path, file.schema_arrow.names, ignore)
            fields = {key: file.schema_arrow.field(key) for key in JSON_KEYS if key in names}
            number = 0
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=names)
                columns = [_values(name, table.column(name), f"{path}: column {name}") for name in names]
                for values in zip(*columns, strict=True):
                    where = f"{path}, row {number}"
                    yield where, _row(dict(zip(names, values, strict=True)), fields, where)
                    number += 1
                on_progress((group + 1) / file.num_row_groups)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise MergeError(f"{path} cannot be read as Parquet: {error}") from error


def _names(path: Path, names: list[str], ignore: Collection[str]) -> list[str]:
    """The columns to read; all are known, since pyarrow takes a dot in others for a path into a struct."""
    if unknown := find_unknown(names, ignore):
        raise MergeError(f"{path}: column {unknown[0]}{unknown[1]}")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise MergeError(f"{path}: column {twice[0]} stands there twice: give it once")
    return [name for name in names if name not in ignore]


def _row(row: Row, fields: dict[str, Any], where: str) -> Row:
    for key, field in fields.items():
        value, name = row[key], f"{where}: {key}"
        row[key] = parse(value, name) if isinstance(value, str) else from_structs(value, field, name)
    return row


def _values(name: str, column: Any, where: str) -> Sequence[Any]:
    """The values of a column: arrays for lists of numbers, text for names, else what Arrow makes of them."""
    types = arrow().types
    if name in NAME_KEYS:
        names = map(whole, column.to_pylist())
        return [str(name) if type(name) is int else name for name in names]
    if name in JSON_KEYS or not (types.is_list(column.type) or types.is_large_list(column.type)):
        return column.to_pylist()
    item = column.type.value_type
    # Writers that see nothing but empty lists give them items of type null.
    if not any(is_kind(item) for is_kind in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)):
        raise MergeError(f"{where} has type {column.type}: a list of numbers is right")
    return [value for chunk in column.chunks for value in _lists(chunk)]


def _lists(chunk: Any) -> Sequence[AnyArray | list[Any] | None]:
    if chunk.values.null_count:  # a number is missing: as a list it comes to whoever knows the row and the call
        return chunk.to_pylist()
    values = chunk.values.to_numpy(zero_copy_only=False)  # copies booleans only
    offsets = chunk.offsets.to_numpy().tolist()
    valid = chunk.is_valid().to_pylist()
    return [values[offsets[at] : offsets[at + 1]] if is_valid else None for at, is_valid in enumerate(valid)]
