"""Which calls left the paths of earlier ones, where, and which earlier call to compare them with."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ajet_merge.call import Call
from ajet_merge.messages import Context, canonical_message

if TYPE_CHECKING:
    from ajet_merge.forest import Forest

SYSTEM_ROLES = ("system", "developer")


class Break(NamedTuple):
    """Call `call` shares `shared` tokens with the call `earlier`, and with none before it more."""

    call: int
    earlier: int
    shared: int


def find_breaks(forest: "Forest", contexts: Sequence[Context | None]) -> Iterator[Break]:
    """The breaks in the order of the calls: a call went on otherwise than an earlier one from where both had come.

    A call that goes on where all earlier ones ended, or lies within one, has none.
    """
    trees = {key: -1 - at for at, key in enumerate(dict.fromkeys(call.compat_key for call in forest.calls))}
    latest: dict[tuple[int, object], int] = {}  # (node, family) -> the latest call so far that goes on from it
    reached: set[int] = set()  # nodes on the path of a call so far
    for index, (call, context) in enumerate(zip(forest.calls, contexts, strict=True)):
        nodes = [*_nodes(forest, index), trees[call.compat_key]]
        families = _families(call, context)
        known = next((node for node in nodes if node in reached), None)
        if known is not None and known != nodes[0] and (known, None) in latest:
            earlier = next(latest[known, family] for family in families if (known, family) in latest)
            yield Break(index, earlier, _depth_below(forest, known))
        latest.update(((node, family), index) for node in nodes[1:] for family in families)
        reached.update(nodes)


def _families(call: Call, context: Context | None) -> list[object]:
    """What earlier calls may have in common with this one, the most telling first."""
    attempt = (call.episode_id, call.attempt_id)
    opening = None if context is None else _first_words(context)
    return [*([] if opening is None else [(*attempt, opening)]), attempt, None]


def _first_words(context: Context) -> str | None:
    """The canonical form of the first message that is no system prompt; None if there is none."""
    at = leading_system_messages(context)
    return canonical_message(context.messages[at]) if at < len(context.messages) else None


def leading_system_messages(context: Context) -> int:
    """How many messages stand before the first that is no system prompt."""
    roles = [message["role"] for message in context.messages]
    return next((at for at, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))


def _nodes(forest: "Forest", call_index: int) -> list[int]:
    """The nodes on a call's path, the last first."""
    nodes: list[int] = []
    node = int(forest.layout.call_node[call_index])
    while node >= 0:
        nodes.append(node)
        node = int(forest.layout.parent[node])
    return nodes


def _depth_below(forest: "Forest", node: int) -> int:
    return int(forest.layout.depth[node] + forest.layout.length[node]) if node >= 0 else 0
