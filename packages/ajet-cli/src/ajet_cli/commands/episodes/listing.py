"""`ajet episodes ls`."""

from dataclasses import asdict
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.datafolder import age
from ajet_cli.commands.merge import drawing
from ajet_cli.output import printable

if TYPE_CHECKING:
    from ajet_server.capture.browse import EpisodeFilter

_COLUMNS = ["episode", "status", "reward", "calls", "tokens", "weights", "step", "opened", "notes"]
_NUMBERS = frozenset(_COLUMNS[2:8])


def collect(db: Connection, wanted: "EpisodeFilter", limit: int) -> dict[str, Any]:
    """Returns the object of the `--json` line."""
    from ajet_server.capture.browse import count_episodes, newest_episodes

    found = newest_episodes(db, wanted, limit)
    return {"episodes": [asdict(line) for line in found], "total": count_episodes(db, wanted)}


def describe(found: dict[str, Any]) -> str:
    """Returns the same for a person."""
    shown: list[dict[str, Any]] = found["episodes"]
    if not shown:
        return "no such episode"
    more = found["total"] - len(shown)
    hint = f"... and {drawing.counted(more, 'older episode')}; --limit shows more of them" if more else None
    return drawing.lines(*_aligned([_COLUMNS, *map(_row, shown)]), hint)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Lines whose columns stand below each other; ids are never cut, or they could not be given to `show`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
            for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(line: dict[str, Any]) -> list[str]:
    notes = [
        line["source"],
        line["kind"] if line["kind"] != "train" else None,
        "prepared" if line["status"] == "open" and line["union_id"] is not None else None,
        "stale" if line["stale"] else None,
        "dropped" if line["dropped_at"] is not None else None,
    ]
    return [
        line["episode_id"],
        line["status"],
        "" if line["reward"] is None else f"{line['reward']:.4g}",
        f"{line['calls']:,}",
        f"{line['prompt_tokens'] + line['completion_tokens']:,}",
        versions(line),
        "" if line["step"] is None else str(line["step"]),
        age(line["opened_at"]),
        printable(" ".join(note for note in notes if note)),
    ]


def versions(line: dict[str, Any]) -> str:
    """Returns the weight versions of the calls: "3", or "3-5"."""
    oldest, newest = line["oldest_version"], line["newest_version"]
    if oldest is None:
        return ""
    return str(oldest) if oldest == newest else f"{oldest}-{newest}"
