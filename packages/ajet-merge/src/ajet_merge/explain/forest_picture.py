"""A picture of the forest for the HTML report: bars as long as their tokens, branches, calls and breaks."""

from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from .departure import Departure
from .report_text import name
from .sides import count

if TYPE_CHECKING:
    from ajet_merge.forest import Forest

    from .explanation import Explanation

MOST_ROWS = 100
"""So many paths get a row of their own; the shorter ones are put together by the path they hang off."""
MOST_NODES = 3000
"""With more nodes than this in the rows shown, rows are drawn without their inner borders."""
MOST_MARKS = 1000
"""So many breaks are marked, the costliest."""
OTHER_TREES = -1
"""Stands for the path that trees without any row hang off."""
WIDTH, LEFT, RIGHT, ROW, BAR, TOP = 1000, 12, 250, 20, 11, 30
"""Measures of the picture: pixels at its natural size."""
MOST_STEPS = 8
"""The scale has no more steps than this."""
NAMES = 3
"""So many calls are named at the end of a row."""


@dataclass(eq=False)
class _Path:
    """A heavy path: a node that is not its parent's longest child, and the longest children below it."""

    nodes: list[int]
    above: int  # the path it hangs off; -1 at roots
    first: int  # depth of its first token
    end: int = 0  # depth after its last
    calls: list[int] = field(default_factory=list[int])  # that end on it


@dataclass(eq=False)
class _Rest:
    """Paths without a row of their own."""

    paths: int = 0
    tokens: int = 0
    first: int = 2**31
    end: int = 0

    def take(self, path: _Path) -> None:
        self.paths += 1
        self.tokens += path.end - path.first
        self.first, self.end = min(self.first, path.first), max(self.end, path.end)


def picture(explanation: "Explanation") -> str:
    """A figure with its caption, as HTML."""
    paths, path_of = _paths(explanation.forest)
    if not paths:
        return "<p>The forest is empty.</p>"
    lengths = sorted((path.first - path.end, at) for at, path in enumerate(paths))
    shown = {at for _, at in lengths[:MOST_ROWS]}  # a path is longer than those that hang off it, so none is cut off
    marks = sorted(explanation.departures, key=lambda found: -found.cost)[:MOST_MARKS]
    drawing = _Drawing(explanation.forest, paths, shown)
    svg = drawing.svg([(path_of[_first_own_node(explanation.forest, found)], found) for found in marks])
    return f'<p class="soft">{_caption(explanation, len(paths), drawing)}</p><div class="scroll">{svg}</div>'


def _caption(explanation: "Explanation", paths: int, drawing: "_Drawing") -> str:
    parts = [
        "Each row is a path, as long as it has tokens; what it shares with the row it hangs off is not drawn again. "
        "Ticks are ends of calls. A filled dot is a break that costs tokens, a hollow one a break that costs none."
    ]
    if paths > MOST_ROWS:
        parts.append(f"Of {paths:,} paths the {MOST_ROWS} longest are drawn, the others put together in pale bars.")
    if not drawing.borders:
        parts.append("There are too many nodes to draw the borders between them.")
    if len(explanation.departures) > MOST_MARKS:
        parts.append(f"The {MOST_MARKS:,} costliest of {len(explanation.departures):,} breaks are marked.")
    return " ".join(parts)


def _paths(forest: "Forest") -> tuple[list[_Path], list[int]]:
    """The heavy paths in preorder, and the path of each node."""
    layout = forest.layout
    parent, depth, length = layout.parent.tolist(), layout.depth.tolist(), layout.length.tolist()
    paths: list[_Path] = []
    path_of: list[int] = []
    for node, above in enumerate(parent):
        if above >= 0 and above == node - 1:  # the longest child comes first
            path_of.append(path_of[above])
        else:
            path_of.append(len(paths))
            paths.append(_Path([], path_of[above] if above >= 0 else -1, depth[node]))
        path = paths[path_of[node]]
        path.nodes.append(node)
        path.end = depth[node] + length[node]
    for call, node in enumerate(layout.call_node.tolist()):
        paths[path_of[node]].calls.append(call)
    return paths, path_of


def _first_own_node(forest: "Forest", found: Departure) -> int:
    """The node in which a call's first own token stands."""
    node = int(forest.layout.call_node[found.call])
    while int(forest.layout.depth[node]) > found.shared:
        node = int(forest.layout.parent[node])
    return node


class _Drawing:
    def __init__(self, forest: "Forest", paths: list[_Path], shown: set[int]) -> None:
        self.forest = forest
        self.paths = paths
        self.shown = sorted(shown)
        self.rests = _rests(paths, shown)
        self.borders = sum(len(paths[at].nodes) for at in shown) <= MOST_NODES
        self.deepest = max(path.end for path in paths)
        self.rows: dict[int, int] = {}
        self.height = 0
        for at in self.shown:
            self.rows[at] = self.height
            self.height += 1 + (at in self.rests)
        self.rows[OTHER_TREES] = self.height - 1
        self.height += OTHER_TREES in self.rests

    def svg(self, marks: list[tuple[int, Departure]]) -> str:
        height = TOP + self.height * ROW + 6
        parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The forest">', *self._scale(height)]
        parts += [part for at in self.shown for part in self._row(self.paths[at], self.rows[at])]
        parts += [self._rest(rest, self.rows[at] + 1) for at, rest in self.rests.items()]
        parts += [self._mark(found, self.rows[at]) for at, found in marks if at in self.rows]
        return "".join([*parts, "</svg>"])

    def _x(self, depth: int) -> float:
        return round(LEFT + depth * (WIDTH - LEFT - RIGHT) / self.deepest, 1)

    def _scale(self, height: int) -> list[str]:
        power = 10 ** (len(str(self.deepest)) - 1)
        sizes = (power // 10, power // 5, power // 2, power, 2 * power)
        step = next(size for size in sizes if size and self.deepest < MOST_STEPS * size)
        lines: list[str] = []
        for depth in range(0, self.deepest + 1, step):
            x = self._x(depth)
            lines.append(f'<path class="tick" d="M{x} {TOP - 10}V{height}"/><text x="{x}" y="14">{depth:,}</text>')
        return lines

    def _row(self, path: _Path, row: int) -> list[str]:
        y = TOP + row * ROW
        link = []
        if path.above >= 0:
            x, top = self._x(path.first), TOP + self.rows[path.above] * ROW + BAR
            link = [f'<path class="link" d="M{x} {top}V{y + BAR}"/>']
        return [*link, *self._bars(path, y), *self._ends(path, y)]

    def _bars(self, path: _Path, y: int) -> list[str]:
        layout = self.forest.layout
        spans = [(path.first, path.end)]
        if self.borders:
            spans = [(int(layout.depth[node]), int(layout.depth[node] + layout.length[node])) for node in path.nodes]
        return [
            self._bar("bar", first, end, y, f"{count(end - first, 'token')} from position {first:,}")
            for first, end in spans
        ]

    def _bar(self, kind: str, first: int, end: int, y: int, title: str) -> str:
        x = self._x(first)
        width = max(round(self._x(end) - x - 1, 1), 1.5)
        return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{BAR}"><title>{title}</title></rect>'

    def _ends(self, path: _Path, y: int) -> list[str]:
        layout, at_depth = self.forest.layout, defaultdict[int, list[int]](list)
        for call in path.calls:
            node = layout.call_node[call]
            at_depth[int(layout.depth[node] + layout.length[node])].append(call)
        ticks = [self._tick(depth, y, calls) for depth, calls in at_depth.items()]
        label = f'<text x="{self._x(path.end) + 6}" y="{y + BAR - 2}">{self._names(path.calls, NAMES)}</text>'
        return [*ticks, label]

    def _tick(self, depth: int, y: int, calls: list[int]) -> str:
        title = f"<title>{self._names(calls, len(calls))}</title>"
        return f'<path class="end" d="M{self._x(depth)} {y - 2}V{y + BAR + 2}">{title}</path>'

    def _names(self, calls: list[int], most: int) -> str:
        named = [_short(name(call, self.forest.calls[call].call_id)) for call in calls[:most]]
        more = len(calls) - len(named)
        return escape(", ".join(named) + (f" and {more:,} more" if more else ""))

    def _rest(self, rest: _Rest, row: int) -> str:
        y = TOP + row * ROW
        label = f"{count(rest.paths, 'shorter path')}, {count(rest.tokens, 'token')}"
        text = f'<text x="{self._x(rest.end) + 6}" y="{y + BAR - 2}">{label}</text>'
        return self._bar("more", rest.first, rest.end, y, label) + text

    def _mark(self, found: Departure, row: int) -> str:
        x, y = self._x(found.shared), TOP + row * ROW + BAR / 2
        title = f"{name(found.call, found.call_id)}: {found.cause.replace('_', ' ')}, cost {found.cost:,}"
        kind = "mark" if found.cost else "free"
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"><title>{escape(title)}</title></circle>'


def _rests(paths: list[_Path], shown: set[int]) -> dict[int, _Rest]:
    """The paths without a row, by the path with a row that they hang off, or as `OTHER_TREES`."""
    home = list(range(len(paths)))
    rests: dict[int, _Rest] = defaultdict(_Rest)
    for at, path in enumerate(paths):
        if at not in shown:
            home[at] = home[path.above] if path.above >= 0 else OTHER_TREES
            rests[home[at]].take(path)
    return dict(rests)


def _short(text: str) -> str:
    return text if len(text) <= 28 else text[:27] + "…"
