"""`ajet merge stats`: what merging saves."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.merge import drawing, source

if TYPE_CHECKING:
    from ajet_merge import Call
    from ajet_merge.records import Record

_WAYS = {"unmerged": "each call alone", "linear": "linear rows", "forest": "forest"}


def measure(records: "Sequence[Record]", model_config: Path | None) -> dict[str, Any]:
    """Returns the object of the `--json` line."""
    from ajet_merge import ModelShape, merge

    calls = [record.call for record in records]
    shape = ModelShape.from_config(source.read_json(model_config)) if model_config else None
    stats = merge(calls).stats
    return asdict(stats) | {
        "ratio_linear": stats.tokens_unmerged / stats.tokens_linear,
        "ratio_forest": stats.tokens_unmerged / stats.tokens_forest,
        "episodes": _by_episode(calls),
        "groups": len({call.group_id for call in calls if call.group_id}),
        "flops": asdict(stats.flops(shape)) if shape else None,
    }


def _by_episode(calls: "Sequence[Call]") -> list[dict[str, Any]]:
    """The tokens of each episode, the largest first; of a forest of its own, so that tokens shared by several count."""
    from ajet_merge import merge

    episodes: dict[str, list[Call]] = {}
    for call in calls:
        episodes.setdefault(call.episode_id, []).append(call)
    found = [
        {
            "episode_id": name,
            "calls": len(own),
            "tokens_unmerged": sum(map(len, own)),
            "tokens_forest": merge(own).num_tokens,
        }
        for name, own in episodes.items()
    ]
    return sorted(found, key=lambda episode: (-episode["tokens_unmerged"], episode["episode_id"]))


def describe(found: dict[str, Any]) -> str:
    """Returns the same for a person."""
    named = [episode for episode in found["episodes"] if episode["episode_id"]]
    sizes = {"call": found["calls"], "episode": len(named), "group": found["groups"]}
    counts = (
        f"{', '.join(drawing.counted(size, what) for what, size in sizes.items())}\n"
        f"{drawing.counted(found['occurrences'], 'occurrence')} (terms of the loss) "
        f"predicted by {drawing.counted(found['predictors'], 'token')}; {found['excluded']:,} excluded"
    )
    return "\n\n".join([counts, _ways(found), _bars(found["episodes"])])


def _ways(found: dict[str, Any]) -> str:
    columns = ["trained as", "tokens", "saves", "attention pairs"]
    rows: list[list[Any]] = []
    for way, title in _WAYS.items():
        ratio = found["tokens_unmerged"] / found[f"tokens_{way}"]
        rows.append([title, found[f"tokens_{way}"], f"{ratio:.1f}x", found[f"pairs_{way}"]])
    if found["flops"]:
        columns += ["FLOPs", "saves"]
        for way, row in zip(_WAYS, rows, strict=True):
            row += [f"{found['flops'][way]:.2e}", f"{found['flops']['unmerged'] / found['flops'][way]:.1f}x"]
    return drawing.table(columns, rows)


def _bars(episodes: list[dict[str, Any]]) -> str:
    longest = episodes[0]["tokens_unmerged"]
    rows = [
        [
            episode["episode_id"] or "(none)",
            drawing.bar(episode["tokens_forest"] / longest, episode["tokens_unmerged"] / longest),
            episode["calls"],
            episode["tokens_unmerged"],
            episode["tokens_forest"],
        ]
        for episode in episodes[: drawing.SHOWN_ROWS]
    ]
    columns = ["episode", "█ forest  ░ saved", "calls", "tokens", "forest"]
    return drawing.lines(drawing.table(columns, rows, names=2), drawing.left_out(len(episodes), "episode"))
