"""Captured calls in files: JSON lines (`.jsonl`, `.jsonl.gz`) and Parquet (`.parquet`, needs pyarrow).

A file holds one call a line or row. Its keys are the names of the `Call` fields, and those of the `Context` fields
where calls come with one; whatever is absent or null has its default. Reading what was written gives equal calls, bit
for bit. Both formats hold the same rows: `record` makes them, `jsonl` and `parquet` store them, `delta` leaves out the
tokens that an earlier call of the file holds already, `files` chooses by suffix, `timelines` writes linear rows.

Parquet may come from elsewhere, from pandas or `datasets` for example: `structs` reads messages and tools in columns of
structs, call_id and the other names may be integers, which stand for their decimals, and integers may have become
floats where some are missing.
"""

from .files import read_calls, read_records, write_calls, write_records
from .record import Record
from .timelines import write_timelines

__all__ = ["Record", "read_calls", "read_records", "write_calls", "write_records", "write_timelines"]
