"""`ajet merge rows`: the linear rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.merge import drawing

if TYPE_CHECKING:
    from ajet_merge import Forest


def build(forest: "Forest", out: Path | None) -> dict[str, Any]:
    """Writes the rows if told where to, and returns the object of the `--json` line."""
    from ajet_merge.records import write_timelines

    timelines = forest.timelines()
    if out:
        write_timelines(out, timelines)
    return {
        "rows": [
            {
                "tokens": row.tokens.size,
                "trained": row.positions.size,
                "weight": float(row.weight.sum(dtype="float64")),
                "calls": row.calls,
                "call_ids": [forest.calls[call].call_id for call in row.calls],
                "context_exact": row.context_exact,
            }
            for row in timelines
        ],
        "tokens_unmerged": sum(map(len, forest.calls)),
        "tokens_linear": sum(row.tokens.size for row in timelines),
        "out": str(out) if out else None,
    }


def describe(found: dict[str, Any]) -> str:
    """Returns the same for a person."""
    rows: list[dict[str, Any]] = found["rows"]
    calls = sum(len(row["calls"]) for row in rows)
    total = (
        f"{len(rows):,} rows of {found['tokens_linear']:,} tokens, for {calls:,} calls of {found['tokens_unmerged']:,}"
    )
    shown = [
        [_names(row), len(row["calls"]), row["tokens"], row["trained"], row["weight"]]
        for row in rows[: drawing.SHOWN_ROWS]
    ]
    made = drawing.table(["calls in the row", "calls", "tokens", "trained", "weights"], shown)
    return drawing.lines(total, "", made, drawing.left_out(len(rows), "row"), drawing.wrote(found["out"]))


def _names(row: dict[str, Any]) -> str:
    names = [name or f"#{call}" for name, call in zip(row["call_ids"], row["calls"], strict=True)]
    return " ".join(names if len(names) <= 3 else [*names[:2], "...", names[-1]])
