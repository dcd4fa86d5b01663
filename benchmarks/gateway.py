"""What a gateway adds to a call, in front of an engine that answers at once: ours beside others', in one run.

Latency and requests per second at 1, 64 and 512 clients, with the engine bare and behind each gateway; what a call
costs as its conversation grows; how much memory an open episode takes. Ours captures every call, durably.
"""

import argparse
import json
import os
import platform
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gating import report
from gating.growth import bytes_per_open_episode, turn_ms
from gating.latency import CLIENTS, Latencies, Plan
from gating.load import Script
from gating.ours import Ours
from gating.peers import PEERS, Peers, start_engine
from gating.texts import bodies, make_folder

_TURNS = 4
"""Of the conversations that clients have over and over."""


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, one after the other: while one server is measured, the others wait."""
    quick: bool = arguments.quick
    plan = Plan(seconds=1.0, rounds=1) if quick else Plan(seconds=6.0, rounds=3)
    conversations, episodes = (8, 400) if quick else (40, 1000)
    most = max(CLIENTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        answer = make_folder(folder).text
        script = Script(bodies(_TURNS, answer), answer.encode())
        bare = stack.enter_context(start_engine(folder))
        bare = replace(bare, clients=list(bare.clients) * most)
        peers = stack.enter_context(Peers(arguments.peers, bare, folder, most))
        _progress("peers: loading their packages (the first time: downloading them)")
        peers.wait_ready(script)
        ours = stack.enter_context(Ours(folder))
        latencies = Latencies({"bare": bare, "ours": ours.open(most), **peers.targets}, script, plan)
        clients = latencies.measure(_progress)
        _check_captured(ours.captured(), latencies.answered["ours"])
        _progress("turns")
        turns = turn_ms({"ms": ours.open(conversations + 1), "bare_ms": bare}, answer, conversations)
        _progress("memory")
        memory = bytes_per_open_episode(folder, script, episodes)
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "clients": clients,
        "turns": turns,
        "bytes_per_open_episode": memory,
        "achieved": report.achieved(clients, turns),
        "skipped": peers.skipped | latencies.skipped,
    }


def _check_captured(captured: int, answered: int) -> None:
    """A gateway that captures less than it answers has an easier task."""
    if captured != answered:
        raise AssertionError(f"{answered} calls were answered and {captured} captured")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="shorter and once: under two minutes")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        metavar="NAME",
        help=f"only these of {', '.join(PEERS)}",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a plot; the name's ending says which format")
    arguments = parser.parse_args()
    result = run(arguments)
    report.show(result)
    if arguments.plot:
        report.plot(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
