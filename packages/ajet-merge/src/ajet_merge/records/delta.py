"""The delta form of a file: a row leaves out the prompt tokens that an earlier call of the file holds already."""

from collections.abc import Sequence

from ajet_merge.call import Call
from ajet_merge.tracker import merge

from .record import Row


def find_extended(calls: Sequence[Call]) -> list[tuple[int, int] | None]:
    """For each call the first earlier one that shares most of its prompt, and how many tokens it shares.

    Linear in the tokens and nodes of the forest: only nodes that no earlier call passed through are walked. A node has
    no branch in it and no call that ends in it, so what a call shares with all earlier ones ends with a node.
    """
    layout = merge(calls).layout
    parent, ends = layout.parent.tolist(), (layout.depth + layout.length).tolist()
    first: dict[int, int] = {}  # node -> the first call that passes through it
    found: list[tuple[int, int] | None] = []
    for index, node in enumerate(layout.call_node.tolist()):
        while node >= 0 and node not in first:
            first[node] = index
            node = parent[node]  # noqa: PLW2901  # the walk from the call's end to what was there before it
        shared = min(ends[node], calls[index].prompt_ids.size) if node >= 0 else 0
        found.append((first[node], shared) if shared else None)
    return found


def shorten(row: Row, extended: tuple[int, int] | None) -> Row:
    """The row in the delta form; as it is if the call extends no other."""
    if extended is None:
        return row
    earlier, shared = extended
    return {"extends": earlier, "shared": shared} | row | {"prompt_ids": row["prompt_ids"][shared:]}
