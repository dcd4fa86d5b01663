"""Messages and tools as columns of Arrow's structs, which is how pandas and `datasets` store them."""

from typing import Any

from ajet_merge.errors import MergeError

from .strictjson import parse


def from_structs(value: Any, field: Any, where: str) -> Any:
    """The JSON value that a cell stands for.

    All structs of a column have the same fields, and Arrow fills those that a writer left out with null. Which nulls
    the writer did give cannot be told, so structs are read without any; nulls in lists stay.

    Args:
        value: what Arrow makes of the cell.
        field: the `pyarrow.Field` of the column, which describes the cell.
        where: what errors begin with.

    Raises:
        MergeError: a map, whose keys and values JSON may not have, or text in a field for JSON that is none.
    """
    from pyarrow import types

    kind = field.type
    if value is None:
        return None
    if _is_json(field):
        return parse(value, where)
    if types.is_map(kind):
        raise MergeError(f"{where} has type {kind}: structs are right, or strings that hold JSON")
    if types.is_struct(kind):
        items = {inner.name: from_structs(value[inner.name], inner, f"{where}.{inner.name}") for inner in kind}
        return {name: item for name, item in items.items() if item is not None}
    if isinstance(value, list):
        return [from_structs(item, kind.value_field, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def _is_json(field: Any) -> bool:
    """Whether it holds JSON as text, which `datasets` writes where values are of several types."""
    # A pyarrow that does not know the type gives plain strings, and keeps its name beside them.
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    return "arrow.json" in (name, getattr(field.type, "extension_name", ""))
