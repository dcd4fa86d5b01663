"""Draws the figures of this folder from what `merge` really returns: `python docs/merge/figures.py`.

Every figure is plain SVG text, so that it stays small and shows in a diff. `test_docs.py` checks that the files are
what this program draws.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from ajet_merge import Call, Forest, Pack, merge
from ajet_merge.records import read_calls

FOLDER = Path(__file__).parent
PIECES = (
    *("<s>", "<user>", "6*7?", "<bot>", "comp", "ute", "<end>", "<tool>", "42"),
    *("It", "is", "forty", "-two", "compute", "Sure?", "Yes.", "<sys>", "Times:"),
)
"""What the token ids of the example stand for."""

COLOURS = ("#ffe08a", "#f4a9a0", "#a9d3f5", "#c9b6ee", "#8fd6c1", "#b9d98a", "#f2c4dd", "#d3d3d3")
INK, PALE, LINE = "#22272e", "#6b7280", "#9aa1ab"
CELL = 50
ROW = 22


class Drawing:
    """SVG elements on a white, rounded background."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, more: str = "") -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{more and " " + more}/>'
        )

    def text(self, x: float, y: float, text: str, anchor: str = "start", size: float = 12, colour: str = INK) -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}" fill="{colour}">'
            f"{escape(text)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str = LINE, width: float = 1.5) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def example() -> Forest:
    """The forest of the running example."""
    return merge(read_calls(FOLDER / "example-calls.jsonl"))


def stretches(forest: Forest) -> NDArray[np.intp]:
    """For each token the stretch without a branch that it belongs to, numbered in preorder."""
    children = np.bincount(forest.parent[forest.parent >= 0], minlength=forest.num_tokens)
    begins = (forest.parent < 0) | (children[forest.parent] > 1)
    return np.cumsum(begins) - 1


def heavy_paths(forest: Forest) -> NDArray[np.intp]:
    """For each token the run of tokens, each the parent of the next, that it belongs to."""
    return np.cumsum(forest.parent != np.arange(-1, forest.num_tokens - 1))


def colours(forest: Forest) -> list[str]:
    return [COLOURS[stretch] for stretch in stretches(forest).tolist()]


def token_box(drawing: Drawing, x: float, y: float, token: int, fill: str, sampled: bool) -> None:
    border = f'stroke="{INK}" stroke-width="1.6"' if sampled else 'stroke="#ffffff"'
    drawing.box(x + 1, y + 1, CELL - 2, ROW - 2, fill, f'rx="3" {border}')
    drawing.text(x + CELL / 2, y + 15, PIECES[token], "middle", 10)


def calls_and_forest() -> str:
    """The calls one below the other, and their forest in the same columns."""
    forest, left, top = example(), 104, 44
    drawing = Drawing(left + 18 * CELL + 12, 346, "Five calls and their forest")
    fills = colours(forest)
    drawing.text(12, 26, f"calls: {forest.stats.tokens_unmerged} tokens", size=14)
    drawing.text(left + 18 * CELL, 26, "dark border: sampled by the model", "end", colour=PALE)
    for index, call in enumerate(forest.calls):
        y = top + index * (ROW + 4)
        drawing.text(12, y + 15, f"{index}: {call.call_id}")
        for pos, token in enumerate(forest.path(index).tolist()):
            sampled = pos >= call.prompt_ids.size
            token_box(drawing, left + pos * CELL, y, int(forest.tokens[token]), fills[token], sampled)
    drawing.text(12, 204, f"forest: {forest.num_tokens} tokens", size=14)
    draw_forest(drawing, forest, left, 216)
    return drawing.svg()


def draw_forest(drawing: Drawing, forest: Forest, left: float, top: float) -> None:
    """One row for each heavy path; the number above a token is its index."""
    rows = heavy_paths(forest)
    sampled = set(forest.occurrences.token.tolist())
    fills = colours(forest)
    for token in range(forest.num_tokens):
        x, y = left + int(forest.pos[token]) * CELL, top + int(rows[token]) * (ROW + 10)
        parent = int(forest.parent[token])
        if parent >= 0 and rows[parent] != rows[token]:
            from_x, from_y = left + int(forest.pos[parent]) * CELL + CELL / 2, top + int(rows[parent]) * (ROW + 10)
            drawing.line([(from_x, from_y + 10 + ROW), (from_x, y + 10 + ROW / 2), (x, y + 10 + ROW / 2)])
        token_box(drawing, x, y + 10, int(forest.tokens[token]), fills[token], token in sampled)
        drawing.text(x + CELL / 2, y + 8, str(token), "middle", 8, PALE)


def attention_mask() -> str:
    """Which keys each query sees, in preorder."""
    forest, left, top, cell = example(), 92, 58, 14
    count, fills = forest.num_tokens, colours(forest)
    size = count * cell
    drawing = Drawing(left + size + 16, top + size + 16, "The attention mask of the forest, in preorder")
    for key, end in enumerate(forest.subtree_end.tolist()):
        drawing.box(left + key * cell, top + key * cell, cell - 1, size - key * cell, "#f1f2f4")
        drawing.box(left + key * cell, top + key * cell, cell - 1, (end - key) * cell, fills[key])
    drawing.text(left, 24, "keys", size=14)
    drawing.text(12, 50, "queries", size=14)
    for query in range(count):
        middle = query * cell + 10
        drawing.text(left - 6, top + middle, f"{PIECES[int(forest.tokens[query])]}  {query}", "end", 9)
        drawing.text(left + query * cell + cell / 2, top - 6, str(query), "middle", 8, PALE)
        drawing.line([(left, top + query * cell - 0.5), (left + size, top + query * cell - 0.5)], "#ffffff", 1)
    for start in np.flatnonzero(np.diff(heavy_paths(forest), prepend=0)).tolist():
        edge = top + start * cell - 0.5
        drawing.line([(left, edge), (left + size, edge)], LINE, 1)
    note_subtree(drawing, forest, left, top, cell)
    return drawing.svg()


def note_subtree(drawing: Drawing, forest: Forest, left: float, top: float, cell: float) -> None:
    key = int(forest.path(1)[-3])  # the last token that both answers of turn 2 share
    end = int(forest.subtree_end[key])
    frame = f'stroke="{INK}" stroke-width="2"'
    drawing.box(left + key * cell - 0.5, top + key * cell - 0.5, cell, (end - key) * cell, "none", frame)
    x, y = left + forest.num_tokens * cell, top + 8.5 * cell
    drawing.line([(left + (key + 0.5) * cell, y + 44), (left + (key + 0.5) * cell, top + key * cell)], INK, 1)
    drawing.text(x, y, f'key {key} (the token "{PIECES[int(forest.tokens[key])]}") is seen', "end")
    drawing.text(x, y + 18, f"by the queries {key} to {end - 1}: itself and what follows it", "end")
    drawing.text(x, y + 36, f"subtree_end[{key}] = {end}", "end")


def packs_and_segments() -> str:
    """One pack with its segments and their keys; the same forest cut into two packs."""
    forest, left, cell = example(), 132, 22
    drawing = Drawing(left + forest.num_tokens * cell + 16, 318, "Segments of a pack, and cutting into packs")
    (whole,) = forest.packs(budget=64)
    drawing.text(12, 26, f"packs(budget=64): one pack, {whole.num_segments} segments", size=14)
    drawing.text(left + 38 * cell, 26, "dark border: queries; all coloured tokens: keys", "end", colour=PALE)
    for segment in range(whole.num_segments):
        draw_segment(drawing, forest, whole, segment, left, 40 + segment * 30, cell)
    parts = forest.packs(budget=24)
    drawing.text(12, 200, f"packs(budget=24): {len(parts)} packs", size=14)
    drawing.text(left + 38 * cell, 200, "striped: run in both packs", "end", colour=PALE)
    for index, pack in enumerate(parts):
        draw_pack(drawing, forest, pack, index, left, 216 + index * 62, cell)
    return drawing.svg()


def draw_segment(
    drawing: Drawing, forest: Forest, pack: Pack, segment: int, left: float, y: float, cell: float
) -> None:
    fills = colours(forest)
    attach = int(pack.seg_attach[segment])
    drawing.text(12, y + 15, f"segment {segment}" + (f", at {attach}" if attach >= 0 else ""))
    drawing.box(left, y, pack.num_tokens * cell - 1, ROW, "#f1f2f4")
    runs = slice(int(pack.kv_ptr[segment]), int(pack.kv_ptr[segment + 1]))
    for start, length in zip(pack.kv_run_start[runs].tolist(), pack.kv_run_len[runs].tolist(), strict=True):
        for token in range(start, start + length):
            drawing.box(left + token * cell, y, cell - 1, ROW, fills[token])
            drawing.text(left + token * cell + cell / 2, y + 15, str(token), "middle", 9)
    first, last = int(pack.seg_start[segment]), int(pack.seg_start[segment + 1])
    frame = f'rx="2" stroke="{INK}" stroke-width="2"'
    drawing.box(left + first * cell - 1, y - 1, (last - first) * cell + 1, ROW + 2, "none", frame)


def draw_pack(drawing: Drawing, forest: Forest, pack: Pack, index: int, left: float, y: float, cell: float) -> None:
    fills = colours(forest)
    homes = np.bincount(np.concatenate([part.forest_index for part in forest.packs(budget=24)]))
    drawing.text(12, y + 15, f"pack {index}: {pack.num_tokens} tokens")
    for at, token in enumerate(pack.forest_index.tolist()):
        x = left + at * cell
        drawing.box(x, y, cell - 1, ROW, fills[token])
        if homes[token] > 1:
            for step in (4, 10, 16):
                drawing.line([(x + step, y + ROW), (x + step + 4, y)], "#ffffff", 1)
        drawing.text(x + cell / 2, y + 15, str(token), "middle", 9)
    for attach, start in zip(pack.seg_attach.tolist(), pack.seg_start.tolist(), strict=False):
        middle = left + start * cell + cell / 2
        if attach >= 0:
            source = left + attach * cell + cell / 2
            drawing.line([(source, y + ROW), (source, y + ROW + 12), (middle, y + ROW + 12), (middle, y + ROW)], INK, 1)


def drifting_calls(turns: int = 30, every: int = 5) -> list[Call]:
    """An episode in which every fifth request writes the latest answer in other tokens than were sampled."""
    numbers = np.random.default_rng(7)
    history, calls = numbers.integers(0, 9000, 600), list[Call]()
    for turn in range(turns):
        answer, result = numbers.integers(0, 9000, 60), numbers.integers(0, 9000, int(numbers.integers(60, 240)))
        calls.append(Call(history, answer, np.zeros(60), call_id=f"turn {turn + 1}"))
        written = answer.copy()
        if turn % every == every - 1:
            written[20] = 9000 + turn  # an id that no answer holds
        history = np.concatenate([history, written, result])
    return calls


def drift() -> str:
    """Linear rows of a 30-turn episode with drift, and what the forest keeps of them."""
    forest = merge(drifting_calls())
    stats, rows, left = forest.stats, sorted(forest.timelines(), key=lambda row: row.calls), 116
    scale = 800 / max(row.tokens.size for row in rows)
    drawing = Drawing(left + 816, 60 + len(rows) * 30 + 140, "Thirty turns with drift: rows and forest")
    drawing.text(12, 26, f"30 turns; every fifth answer comes back in other tokens: {len(rows)} linear rows", size=14)
    drawing.text(
        12, 46, "pale: run before in a row above, and run again by linear rows; the forest has it once", colour=PALE
    )
    seen = np.zeros(forest.num_tokens, np.bool_)
    for index, row in enumerate(rows):
        y, shared = 60 + index * 30, int(np.count_nonzero(seen[row.path]))
        owned = len(row.calls)
        drawing.text(12, y + 15, f"turn {row.calls[0] + 1}" if owned == 1 else f"{owned} turns")
        drawing.box(left, y, shared * scale, ROW, "#e3e6ea")
        drawing.box(left + shared * scale, y, (row.tokens.size - shared) * scale, ROW, COLOURS[2])
        seen[row.path] = True
    totals = {"every call": stats.tokens_unmerged, "linear rows": stats.tokens_linear, "forest": stats.tokens_forest}
    draw_totals(drawing, totals, left, 60 + len(rows) * 30 + 36)
    return drawing.svg()


def draw_totals(drawing: Drawing, totals: dict[str, int], left: float, top: float) -> None:
    drawing.text(12, top - 6, "tokens to run", size=14)
    scale = 700 / max(totals.values())
    for index, (name, tokens) in enumerate(totals.items()):
        y = top + 6 + index * 30
        drawing.text(12, y + 15, name)
        drawing.box(left, y, tokens * scale, ROW, (COLOURS[1], COLOURS[0], COLOURS[4])[index])
        drawing.text(left + tokens * scale + 8, y + 15, f"{tokens:,}")


FIGURES: dict[str, Callable[[], str]] = {
    "calls-and-forest.svg": calls_and_forest,
    "attention-mask.svg": attention_mask,
    "packs-and-segments.svg": packs_and_segments,
    "drift.svg": drift,
}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
