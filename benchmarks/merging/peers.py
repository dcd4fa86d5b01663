"""Other projects' merging, each in a process and, where it is a package, in an environment of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any

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

    @property
    def command(self) -> list[str]:
        path = str(_HERE / f"{self.script}.py")
        if not self.own_environment:
            return [sys.executable, path]
        # The file's header names its packages; this interpreter, so that all run on the same one.
        return ["uv", "run", "--quiet", "--no-project", "--python", sys.executable, "--script", path]


PEERS = (
    Peer("peer_recreated", own_environment=False),
    Peer("peer_twin", own_environment=False, variables=(("AJET_MERGE_PURE", "1"),)),
    Peer("peer_tinker_cookbook", own_environment=True),
    Peer("peer_verifiers", own_environment=True),
    Peer("peer_agentlightning", own_environment=True),
)


class PeerError(Exception):
    """The peer cannot be run, or not on this case; says why."""


class Process:
    """A running peer. All are started together, so that they load their packages before anything is timed."""

    def __init__(self, peer: Peer, budget_s: float) -> None:
        self.name = peer.name
        if peer.own_environment and shutil.which("uv") is None:
            raise PeerError("uv, which makes its environment, is not on the PATH")
        self._log: IO[bytes] = TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = subprocess.Popen(
            peer.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"MERGE_BENCH_BUDGET_S": str(budget_s)} | dict(peer.variables),
            start_new_session=True,  # so that `stop` also ends what uv started
        )

    def wait_ready(self) -> None:
        """Returns once its packages are loaded.

        Raises:
            PeerError: it ended, or took too long.
        """
        self._answer(START_S)

    def measure(self, case_file: Path) -> dict[str, dict[str, float]]:
        """Results (us, rows, tokens) by the name of the way to merge.

        Raises:
            PeerError: it ended, or took too long.
        """
        assert self._process.stdin is not None
        try:
            print(case_file, file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise PeerError(self._last_words()) from error
        results: dict[str, dict[str, float]] = json.loads(self._answer(CASE_S))
        return results

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def _answer(self, limit_s: float) -> str:
        assert self._process.stdout is not None
        expired: list[bool] = []

        def expire() -> None:
            expired.append(True)
            os.killpg(self._process.pid, signal.SIGKILL)

        timer = Timer(limit_s, expire)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if expired:
            raise PeerError(f"took more than {limit_s:.0f} s")
        if not line:
            raise PeerError(self._last_words())
        return line

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.returncode}"


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
            except PeerError as error:
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
            except PeerError as error:
                self._leave_out(process, error)

    def measure(self, case_file: Path) -> dict[str, dict[str, float]]:
        """Results of all that still run, one after the other."""
        results: dict[str, dict[str, float]] = {}
        for process in list(self._running):
            try:
                results |= process.measure(case_file)
            except PeerError as error:
                self._leave_out(process, error)
        return results

    def _leave_out(self, process: Process, error: PeerError) -> None:
        self.skipped[process.name] = str(error)
        process.stop()
        self._running.remove(process)
