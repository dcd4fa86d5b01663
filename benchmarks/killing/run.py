"""One long training run whose processes are killed, and one that is left alone."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from killing.points import AT_ONCE, Point, Struck, Target
from killing.proof import Journal, missing
from killing.service import Service, children, client_command, send, server_command
from killing.watch import Watch, phase_on_disk

_BACK_S = 300.0
_PHASE_S = 60.0
_LEARN_S = 900.0


def chaos_job(model: Path) -> dict[str, object]:
    """Full training of the micro model. Kills come faster than updates, so restarts of the worker have no bound."""
    return {
        "name": "chaos",
        "model": {"path": str(model)},
        "method": "full",
        "optimizer": {"learning_rate": 2e-3},
        "batch": {"policy": "groups", "size": 2, "group_size": 4},
        "limits": {
            "max_completion_tokens": 24,
            "lease_s": 10,
            "drain_timeout_s": 5,
            "max_worker_restarts": 100_000,
        },
        "checkpoint": {"keep": 3},
    }


class Run:
    """A server and its client, each started again whenever it ends, on a fresh data folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        folder.mkdir(parents=True)
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        self.data, self.journal = folder / "data", folder / "acknowledged.jsonl"
        self.job = chaos_job(model)
        self._watch = Watch(url)
        self._server = Service(server_command(self.data, self.job, port), folder / "server.log")
        self._client = Service(client_command(url, self.journal), folder / "client.log")
        self._seen, self._struck_at = 0, 0.0

    def train(self, updates: int) -> None:
        """Leaves it alone until so many updates are done. Raises `TimeoutError` with what it does instead."""
        if not self._watch.wait_for_step(updates, _LEARN_S):
            raise TimeoutError(f"{self._watch.step} of {updates} updates after {_LEARN_S:g} s: {self._watch.phase}")

    def strike(self, points: list[Point], on_struck: Callable[[Struck], None]) -> list[Struck]:
        """Kills at every point, looks after each whether all is there, and tells of it."""
        struck: list[Struck] = []
        self.train(1)
        for point, following in zip(points, [*points[1:], None], strict=True):
            struck.append(self._strike(point))
            if following is None or following.aim not in AT_ONCE:
                self._look_after(struck[-1])
            on_struck(struck[-1])
        return struck

    def stop(self) -> None:
        """Ends the client, then the server in order."""
        self._client.stop(signal.SIGKILL)
        self._watch.close()
        self._server.stop(signal.SIGTERM)

    def kill(self) -> None:
        """Ends everything at once, for a run that failed."""
        for service in (self._client, self._server):
            service.stop(signal.SIGKILL)

    def _strike(self, point: Point) -> Struck:
        if point.aim not in ("any", "starting") and not (point.aim == "rolling" == self._watch.phase):
            # If it does not come, this kill hits what there is.
            self._watch.wait(point.aim, self._watch.heard, _PHASE_S)
        time.sleep(point.delay_s)
        self._seen, self._struck_at = self._watch.heard, time.monotonic()
        api = self._server.alive()
        workers = children(api)
        target: Target = "api" if point.target == "worker" and not workers else point.target
        everybody = [api, *workers]
        doomed = {"api": [api], "worker": workers, "both": everybody, "client": [self._client.alive()]}
        # All stand still, so that what is looked at is what is hit.
        send(everybody, signal.SIGSTOP)
        phase = phase_on_disk(self.data, api)
        send(doomed[target], signal.SIGKILL)
        send(everybody, signal.SIGCONT)
        return Struck(target, phase, self._watch.step)

    def _look_after(self, struck: Struck) -> None:
        """Waits until episodes are handed out again and compares what was acknowledged with what is there."""
        if struck.target != "client" and not self._watch.wait_for_boot(self._seen, _BACK_S):
            raise TimeoutError(f"not back after {_BACK_S:g} s: {self._watch.phase}")
        struck.recovery_s = time.monotonic() - self._struck_at
        acknowledged = Journal.read(self.journal)
        struck.acknowledged = len(acknowledged.finishes)
        lost, problems = missing(self.data, acknowledged)
        struck.lost, struck.problems = len(lost), len(problems)


def summary(struck: list[Struck]) -> list[dict[str, Any]]:
    """Kills by the phase that they hit, and by whom."""
    rows: dict[str, dict[str, Any]] = {}
    for one in struck:
        row = rows.setdefault(
            one.phase, {"phase": one.phase, "api": 0, "worker": 0, "both": 0, "client": 0, "clean": 0}
        )
        row[one.target] += 1
        row["clean"] += one.clean
    order = ("starting", "booting", "rolling", "draining", "updating", "checkpoint", "recording", "syncing")
    return [rows[phase] for phase in order if phase in rows]


def _free_port() -> int:
    """A port below the range that outgoing connections take theirs from, which could occupy it between two lives."""
    for port in range(21_000, 30_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port between 21000 and 30000 is free")
