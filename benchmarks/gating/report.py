"""What was reached, the tables on the terminal, and the plot."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_AT = "64"
"""The number of clients that is judged."""


def achieved(clients: dict[str, Any], turns: dict[str, Any]) -> dict[str, float | None]:
    """Ours over the others at 64 clients, and the 128th turn over the 8th; None where the peer is missing."""
    ours, peers = clients[_AT]["ours"], dict(clients[_AT]["peers"])
    litellm = peers.pop("litellm", None)
    best = max((peer["rps"] for peer in peers.values()), default=None)
    return {
        "rps_over_litellm": litellm and ours["rps"] / litellm["rps"],
        "rps_over_best_other": best and ours["rps"] / best,
        "added_p50_over_litellm": litellm and ours["added_p50_ms"] / litellm["added_p50_ms"],
        "turn_128_over_8": turns["128"]["ms"] / turns["8"]["ms"],
    }


def show(result: dict[str, Any]) -> None:
    """Prints the tables to stdout."""
    console = Console(width=140)
    for table in (_clients_table(result["clients"]), _turns_table(result["turns"]), _achieved_table(result)):
        console.print(table)
    for name, why in result["skipped"].items():
        console.print(f"skipped {name}: {why}", highlight=False)


def _series(clients: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Cells by server, then by number of clients."""
    series: dict[str, dict[str, dict[str, float]]] = {}
    for count, cells in clients.items():
        for name, cell in {"bare": cells["bare"], "ours": cells["ours"], **cells["peers"]}.items():
            series.setdefault(name, {})[count] = cell
    return series


def _clients_table(clients: dict[str, Any]) -> Table:
    table = Table("server", title="requests per second; latency p50 / p99 in ms; p50 beyond the bare engine's")
    for count in clients:
        table.add_column(f"{count} client{'s' if count != '1' else ''}", justify="right")
    for name, cells in _series(clients).items():
        table.add_row(name, *(_cell(cells.get(count)) for count in clients))
    return table


def _cell(cell: dict[str, float] | None) -> str:
    if cell is None:
        return "-"
    return f"{cell['rps']:,.0f}/s\n{cell['p50_ms']:,.2f} / {cell['p99_ms']:,.2f}\n+{cell['added_p50_ms']:,.2f}"


def _turns_table(turns: dict[str, dict[str, float]]) -> Table:
    table = Table("turn", *turns, title="milliseconds of a call, by its turn in a conversation of 1 kB messages")
    for label, field in (("ours", "ms"), ("bare", "bare_ms")):
        table.add_row(label, *(f"{cell[field]:.2f}" for cell in turns.values()))
    return table


def _achieved_table(result: dict[str, Any]) -> Table:
    table = Table("figure", "value", title=f"at {_AT} clients, and growth")
    for name, value in result["achieved"].items():
        table.add_row(name, "-" if value is None else f"{value:.3g}")
    table.add_row("bytes_per_open_episode", f"{result['bytes_per_open_episode']:,.0f}")
    return table


def plot(result: dict[str, Any], path: Path) -> None:
    """Requests per second, latency and cost by turn, as PNG, SVG or whatever the name ends with."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.5), dpi=150, layout="constrained")
    rates, latencies, turns = figure.subplots(1, 3)
    for name, cells in _series(result["clients"]).items():
        counts = [int(count) for count in cells]
        rates.plot(counts, [cell["rps"] for cell in cells.values()], "o-", label=name)
        latencies.plot(counts, [cell["p50_ms"] for cell in cells.values()], "o-", label=name)
    for label, field in (("ours", "ms"), ("bare", "bare_ms")):
        points = {int(turn): cell[field] for turn, cell in result["turns"].items()}
        turns.plot(list(points), list(points.values()), "o-", label=label)
    rates.set(xscale="log", yscale="log", xlabel="clients", title="requests per second")
    latencies.set(xscale="log", yscale="log", xlabel="clients", title="latency p50, ms")
    turns.set(xscale="log", yscale="log", xlabel="turn", title="one call, ms")
    for axes in (rates, latencies, turns):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path)
