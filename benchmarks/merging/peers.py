"""Other projects' merging, each in a process and, where it is a package, in an environment of its own."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Child, ChildError, script_command

_HERE = Path(__file__).parent
START_S, CASE_S = 900.0, 120.0  # the first start downloads the packages

WITHOUT_MERGING = {
    "verl": "verl 0.9.1 has no function that merges captured calls; its agent loops append to one sequence while they "
    "generate",
}


@dataclass(frozen=True)
class Peer:
    """A script that answers as `serve` describes, and how it is started."""

    script: str
    own_environment: bool
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.script.removeprefix("peer_")

    def command(self) -> list[str]:
        """All run on this interpreter. Raises `ChildError` when its environment cannot be made."""
        path = _HERE / f"{self.script}.py"
        return script_command(path) if self.own_environment else [sys.executable, str(path)]


PEERS = (
    Peer("peer_recreated", own_environment=False),
    Peer("peer_twin", own_environment=False, variables=(("AJET_MERGE_PURE", "1"),)),
    Peer("peer_tinker_cookbook", own_environment=True),
    Peer("peer_verifiers", own_environment=True),
    Peer("peer_agentlightning", own_environment=True),
)


class Process(Child):
    """A running peer. All are started together, so that they load their packages before anything is timed."""

    def __init__(self, peer: Peer, budget_s: float) -> None:
        self.name = peer.name
        super().__init__(peer.command(), {"MERGE_BENCH_BUDGET_S": str(budget_s), **dict(peer.variables)})

    def wait_ready(self) -> None:
        """Returns once its packages are loaded.

        Raises:
            ChildError: it ended, or took too long.
        """
        self.answer(START_S)

    def measure(self, case_file: Path) -> dict[str, dict[str, float]]:
        """Results (us, rows, tokens) by the name of the way to merge.

        Raises:
            ChildError: it ended, or took too long.
        """
        self.say(str(case_file))
        results: dict[str, dict[str, float]] = json.loads(self.answer(CASE_S))
        return results


class Peers:
    """All peers; use as a context manager. One that fails is left out from then on, and `skipped` says why."""

    def __init__(self, budget_s: float, names: list[str] | None = None) -> None:
        self.skipped: dict[str, str] = dict(WITHOUT_MERGING)
        self._running: list[Process] = []
        for peer in PEERS:
            if names is not None and peer.name not in names:
                continue
            try:
                self._running.append(Process(peer, budget_s))
            except ChildError as error:
                self.skipped[peer.name] = str(error)

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._running:
            process.stop()

    def wait_ready(self) -> None:
        """Until every peer has loaded its packages, or failed to."""
        for process in list(self._running):
            try:
                process.wait_ready()
            except ChildError as error:
                self._leave_out(process, error)

    def measure(self, case_file: Path) -> dict[str, dict[str, float]]:
        """Results of all that still run, one after the other."""
        results: dict[str, dict[str, float]] = {}
        for process in list(self._running):
            try:
                results |= process.measure(case_file)
            except ChildError as error:
                self._leave_out(process, error)
        return results

    def _leave_out(self, process: Process, error: ChildError) -> None:
        self.skipped[process.name] = str(error)
        process.stop()
        self._running.remove(process)
