"""`ajet merge packs`: the forest in parts for one forward pass each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.merge import drawing
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_merge import Forest, Pack

_NUMBERS = {"rank": "int64", "is_dummy": "bool", "cost": "float64"}


def build(forest: "Forest", budget: int, max_path: int | None, ranks: int, out: Path | None) -> dict[str, Any]:
    """Writes the packs if told where to, and returns the object of the `--json` line."""
    packs = forest.packs(budget, max_path, ranks)
    if out:
        _write(forest, packs, out)
    real = [pack for pack in packs if not pack.is_dummy]
    tokens = sum(pack.num_tokens for pack in real)
    distinct = _count_distinct(forest, real)
    return {
        "packs": [_row(pack) for pack in packs],
        "tokens": tokens,
        "tokens_forest": forest.num_tokens,
        "repeated": tokens - distinct,
        "left_out": forest.num_tokens - distinct,
        "fill": tokens / (budget * len(real)) if real else 0.0,
        "dummies": len(packs) - len(real),
        "out": str(out) if out else None,
    }


def _count_distinct(forest: "Forest", packs: "Sequence[Pack]") -> int:
    import numpy as np

    found = np.zeros(forest.num_tokens, np.bool_)
    for pack in packs:
        found[pack.forest_index] = True
    return int(found.sum())


def _row(pack: "Pack") -> dict[str, Any]:
    return {
        "rank": pack.rank,
        "tokens": pack.num_tokens,
        "segments": pack.num_segments,
        "occurrences": 0 if pack.is_dummy else pack.occ_index.size,
        "weight": float(pack.weight.sum(dtype="float64")),
        "cost": pack.cost,
        "dummy": pack.is_dummy,
    }


def _write(forest: "Forest", packs: "Sequence[Pack]", out: Path) -> None:
    """The arrays of pack 3 are named 3.tokens, 3.parent and so on; numbers of all packs stand in one array each."""
    from dataclasses import fields

    import numpy as np

    from ajet_merge import Pack

    if out.suffix != ".npz":
        raise ConfigError(f"{out}: the suffix must be .npz")
    arrays: dict[str, Any] = {
        name: np.array([getattr(pack, name) for pack in packs], dtype) for name, dtype in _NUMBERS.items()
    }
    arrays |= {"occurrences.call": forest.occurrences.call, "occurrences.t": forest.occurrences.t}
    names = [field.name for field in fields(Pack) if field.name not in _NUMBERS]
    arrays |= {f"{index}.{name}": getattr(pack, name) for index, pack in enumerate(packs) for name in names}
    try:
        with out.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error


def describe(found: dict[str, Any]) -> str:
    """Returns the same for a person."""
    packs: list[dict[str, Any]] = found["packs"]
    dummies, repeated, left_out = found["dummies"], found["repeated"], found["left_out"]
    distinct = found["tokens"] - repeated
    totals = [
        f"{drawing.counted(len(packs), 'pack')}, {dummies:,} of them dummies; the others are {found['fill']:.1%} full",
        f"{found['tokens']:,} tokens: {distinct:,} of the forest, {repeated:,} repeated by cutting it"
        + (f"; {left_out:,} tokens train nothing and are left out" if left_out else ""),
    ]
    shown = [[index, *(pack | {"cost": round(pack["cost"])}).values()] for index, pack in enumerate(packs)]
    columns = ["pack", "rank", "tokens", "segments", "occurrences", "weights", "cost", "dummy"]
    made = drawing.table(columns, shown[: drawing.SHOWN_ROWS], names=0)
    return drawing.lines(*totals, "", made, drawing.left_out(len(packs), "pack"), drawing.wrote(found["out"]))
