"""The tables on the terminal, and the plot."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BY_TEXT = "recreated_text_merge_python"
"""Compares texts and never reads the ids of later prompts. Other work with another result: not among the peers."""


WAYS = ("unmerged", "linear", "forest")


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _tokens_table(cases: dict[str, Any]) -> Table:
    table = Table("case", "calls", "unmerged", "linear rows", "forest", "saved", "FLOPs saved", title="tokens")
    for name, case in cases.items():
        counts = (case["calls"], case["unmerged_tokens"], case["linear_tokens"], case["forest_tokens"])
        flops = case["flops"]
        table.add_row(
            name, *(f"{count:,}" for count in counts), _saved(*counts[1:]), _saved(*(flops[way] for way in WAYS))
        )
    table.caption = "Saved: against unmerged / against linear rows. FLOPs: forward and backward of an 8B dense model."
    return table


def _saved(unmerged: int, linear: int, forest: int) -> str:
    return f"{unmerged / forest:.1f}x / {linear / forest:.1f}x"


def _times_table(cases: dict[str, Any]) -> Table:
    table = Table(
        "case", "limit", "merge", "x limit", "Calls + merge", "+ packs", "+ rows", "lists", "x convert", "twin"
    )
    table.title = "microseconds"
    for name, case in cases.items():
        table.add_row(
            name,
            _us(case["limit_us"]),
            _us(case["ours_us"]),
            f"{case['ours_us'] / case['limit_us']:.2f}",
            _us(case["ours_calls_us"]),
            _us(case["ours_packs_us"]),
            _us(case["ours_rows_us"]),
            _us(case["ours_list_us"]),
            f"{case['ours_list_us'] / case['list_convert_us']:.2f}",
            _us(case["twin_us"]),
        )
    table.caption = (
        "limit: every id read once where it lies. x convert: against turning the lists into int32 arrays alone."
    )
    return table


def _peers_table(cases: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(name for case in cases.values() for name in case["peers"]))
    table = Table("peer", *cases, title="peers: microseconds from lists, x our merge of int32 (rows, tokens)")
    for name in names:
        table.add_row(name, *(_peer_cell(case, name) for case in cases.values()))
    table.add_section()
    table.add_row("ours: the same lists to rows", *(_our_rows_cell(case) for case in cases.values()))
    table.add_row("fastest of these", *(_fastest_cell(case) for case in cases.values()))
    table.add_row(f"{BY_TEXT}: not exact, reads no ids", *(_by_text_cell(case) for case in cases.values()))
    return table


def _fastest_cell(case: dict[str, Any]) -> str:
    return f"{min(case['peers'].values()) / case['ours_us']:,.0f}x" if case["peers"] else "-"


def _our_rows_cell(case: dict[str, Any]) -> str:
    us = case["ours_list_rows_us"]
    return f"{us:,.0f}\n{us / case['ours_us']:,.0f}x\n({case['rows']:,}, {case['linear_tokens']:,})"


def _by_text_cell(case: dict[str, Any]) -> str:
    found = case["by_text"]
    return f"{found['us']:,.0f}\n{found['us'] / case['ours_us']:,.0f}x" if found else "-"


def _peer_cell(case: dict[str, Any], name: str) -> str:
    if name not in case["peers"]:
        return "-"
    us = case["peers"][name]
    return f"{us:,.0f}\n{us / case['ours_us']:,.0f}x\n({case['peer_rows'][name]:,}, {case['peer_tokens'][name]:,})"


def _exponents_table(exponents: dict[str, float]) -> Table:
    table = Table("case", "merge", "packs", "rows", "limit", title="exponents of time over unmerged tokens")
    for name in [name for name in exponents if "." not in name]:
        stages = ("", ".packs", ".rows", ".limit")
        table.add_row(name, *(f"{exponents[name + stage]:.2f}" for stage in stages))
    return table


def show(result: dict[str, Any]) -> None:
    """Prints the tables to stdout."""
    console = Console(width=200)
    for table in (
        _tokens_table(result["cases"]),
        _times_table(result["cases"]),
        _peers_table(result["cases"]),
        _exponents_table(result["exponents"]),
    ):
        console.print(table)
    for name, why in result["skipped"].items():
        console.print(f"skipped {name}: {why}", highlight=False)


def plot(result: dict[str, Any], path: Path) -> None:
    """Times by case and their growth with size, as PNG, SVG or whatever the name ends with."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(14, 5), layout="constrained")
    _plot_cases(axes[0], result["cases"])
    _plot_growth(axes[1], result["points"])
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _plot_cases(axes: Any, cases: dict[str, Any]) -> None:
    series = {
        "limit: every id read once": "limit_us",
        "merge, int32": "ours_us",
        "lists -> int32 alone": "list_convert_us",
    }
    series["merge, lists"] = "ours_list_us"
    for label, field in series.items():
        axes.plot(list(cases), [case[field] for case in cases.values()], "o", label=label)
    for name in dict.fromkeys(name for case in cases.values() for name in case["peers"]):
        axes.plot(list(cases), [case["peers"].get(name) for case in cases.values()], "x", label=name)
    axes.set(yscale="log", ylabel="microseconds", title="time to merge")
    axes.tick_params(axis="x", rotation=30)
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))


def _plot_growth(axes: Any, points: dict[str, Any]) -> None:
    for name, measured in points.items():
        axes.plot(measured["tokens"], measured["us"][name], "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="unmerged tokens", ylabel="microseconds", title="growth of the merge")
    axes.xaxis.set_minor_formatter("")
    axes.legend(fontsize="x-small")
