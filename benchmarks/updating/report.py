"""The tables on the terminal, and the plot."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_WAYS = ("padded", "packed", "linear", "text", "forest")
_NOT_EXACT = "text"


def _label(way: str) -> str:
    return f"{way} (not exact)" if way == _NOT_EXACT else way


def _table(cases: dict[str, Any], field: str, unit: str, form: str) -> Table:
    """One row for each case: each way's value, and how many times the forest's it is."""
    table = Table("case", *(_label(way) for way in _WAYS), title=f"{unit} (x forest)")
    for name, case in cases.items():
        values = case[field]
        table.add_row(name, *(f"{values[way]:{form}} ({values[way] / values['forest']:.1f}x)" for way in _WAYS))
    return table


def _promise_table(cases: dict[str, Any]) -> Table:
    table = Table("case", "calls", "FLOPs", "packed / forest", "of promise", "by CPU time", "linear / forest", "by CPU")
    table.title = "what the forest saves: promised by arithmetic, measured"
    for name, case in cases.items():
        got = case["achieved"]
        table.add_row(
            name,
            f"{case['calls']}",
            f"{case['flop_ratio']:.2f}x",
            f"{got['ratio']:.2f}x",
            f"{got['fraction']:.0%}",
            f"{got['cpu_ratio']:.2f}x, {got['cpu_fraction']:.0%}",
            f"{got['linear_ratio']:.2f}x",
            f"{got['cpu_linear_ratio']:.2f}x",
        )
    return table


def _exact_table(cases: dict[str, Any]) -> Table:
    columns = ("fp64", "fp64_worst_parameter", "fp32", "fp32_worst_parameter")
    table = Table("case", "fp64", "worst parameter", "fp32", "worst parameter")
    table.title = "relative error of the forest's gradient, against every call alone"
    for name, case in cases.items():
        table.add_row(name, *(f"{case['grad_rel_err'][column]:.1e}" for column in columns))
    return table


def show(result: dict[str, Any]) -> None:
    """Prints the tables to stdout."""
    console, cases = Console(width=160), result["cases"]
    for table in (
        _table(cases, "seconds", "seconds of an update", ".2f"),
        _table(cases, "cpu_seconds", "processor seconds of an update", ".2f"),
        _table(cases, "tokens", "tokens that run forward", ",d"),
        _table(cases, "peak_mb", "peak memory in MB above the loaded model", ",.0f"),
        _promise_table(cases),
        _exact_table(cases),
    ):
        console.print(table)
    if result["trl"] is not None:
        console.print(_trl_line(result["trl"]), highlight=False)


def _trl_line(trl: dict[str, float]) -> str:
    return (
        f"single_turn: ours {trl['seconds_ours']:.3f} s ({trl['cpu_seconds_ours']:.3f} CPU), "
        f"TRL's loss step {trl['seconds_trl']:.3f} s ({trl['cpu_seconds_trl']:.3f} CPU); "
        f"losses differ by {trl['loss_abs_diff']:.1e}"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Seconds and memory of each way by case, as PNG, SVG or whatever the name ends with."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained")
    _bars(axes[0], result["cases"], "seconds", "seconds of an update")
    _bars(axes[1], result["cases"], "peak_mb", "peak memory, MB above the loaded model")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axes: Any, cases: dict[str, Any], field: str, title: str) -> None:
    width = 1 / (len(_WAYS) + 1)
    for index, way in enumerate(_WAYS):
        places = [place + index * width for place in range(len(cases))]
        axes.bar(places, [case[field][way] for case in cases.values()], width, label=_label(way))
    middle = (len(_WAYS) - 1) / 2 * width
    axes.set_xticks([place + middle for place in range(len(cases))], list(cases), rotation=20)
    axes.set(title=title)
    axes.legend(fontsize="small")
