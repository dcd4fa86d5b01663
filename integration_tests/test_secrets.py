"""Keys and tokens of a real server: where they are, and where they are not."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import yaml

from ajet_cli.spawn import SpawnedServer, spawn_server
from ajet_client import Swarm
from ajet_core.status import StatusView
from live_server import BOOT_S, last_json, micro_job, run_cli, say

_HOLDERS = {"secret", "admin-token", "client-token"}


@dataclass(frozen=True)
class _Used:
    """A server that asks for tokens, after a step was trained on it."""

    data_dir: Path
    spawned: SpawnedServer
    status: StatusView
    secrets: dict[str, str]

    @property
    def pids(self) -> tuple[int, int]:
        assert self.status.worker_pid is not None
        return self.spawned.process.pid, self.status.worker_pid


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, micro_model: Path) -> Iterator[_Used]:
    folder = tmp_path_factory.mktemp("secrets")
    job = folder / "job.yaml"
    job.write_text(
        yaml.safe_dump(micro_job(micro_model, batch={"policy": "groups", "size": 1, "group_size": 2})), "utf-8"
    )
    data_dir = folder / "data"
    spawned = spawn_server(data_dir, ["--port", "0", "--job", str(job), "--require-token"])
    try:
        secrets = {name: (data_dir / name).read_text("utf-8").strip() for name in ("admin-token", "client-token")}
        with Swarm(spawned.url, token=secrets["client-token"], timeout=30) as swarm:
            yield _Used(data_dir, spawned, _train(swarm, secrets), secrets)
    finally:
        spawned.process.terminate()
        spawned.process.wait(30)


def _train(swarm: Swarm, secrets: dict[str, str]) -> StatusView:
    """One step, and a mistake of the client's that is told."""
    swarm.wait_until_serving(BOOT_S)
    for number in range(2):
        with swarm.episode("a task") as episode:
            say(episode, "go")
            secrets[f"agent {number}"] = episode.api_key
            secrets[f"control {number}"] = episode.grant.control_key
            episode.reward(float(number))
    for event in swarm.events():
        if event.type == "weights_synced" and event.weight_version == 1:
            return swarm.status()
    raise AssertionError("the events ended")


def _files(data_dir: Path) -> list[Path]:
    return [file for file in data_dir.rglob("*") if file.is_file()]


def test_no_file_holds_a_key_in_the_clear(used: _Used) -> None:
    """Ledger, log, checkpoints, `server.json`: the keys of episodes are kept as digests, and tokens in their files."""
    assert len(used.secrets) == 6
    for file in _files(used.data_dir):
        content = file.read_bytes()
        found = {name for name, secret in used.secrets.items() if secret.encode() in content}
        assert found <= {file.name}, file
    assert {file.name for file in _files(used.data_dir)} >= _HOLDERS


def test_no_process_shows_a_key_to_other_users(used: _Used) -> None:
    for pid in used.pids:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert not [name for name, secret in used.secrets.items() if secret.encode() in shown]


def test_no_answer_tells_a_key(used: _Used) -> None:
    headers = {"Authorization": f"Bearer {used.secrets['client-token']}"}
    with httpx2.Client(base_url=used.spawned.url, headers=headers, timeout=30) as http:
        paths = ("/api/status", "/api/job", "/api/janitor", "/metrics", "/healthz", "/readyz", "/api/openapi.json")
        told = "".join(http.get(path).text for path in paths)
        with http.stream("GET", "/api/events") as events:
            for line in events.iter_lines():
                told += line
                if told.count("weights_synced") == 2:  # at the start, and after the step
                    break
    assert not [name for name, secret in used.secrets.items() if secret in told]


def test_files_and_folders_are_private(used: _Used) -> None:
    assert stat.S_IMODE(used.data_dir.stat().st_mode) == 0o700
    for path in used.data_dir.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_worker_cannot_be_reached(used: _Used) -> None:
    """One process listens, on one socket, on loopback; the worker is at the end of a socket pair without a name."""
    listening = _listening_inodes()
    server, worker = used.pids
    assert len(_sockets(server) & listening) == 1
    assert not _sockets(worker) & listening
    named = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if len(line.split()) > 7}
    assert not _sockets(worker) & named


def _listening_inodes() -> set[str]:
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {line.split()[9] for line in lines if line.split()[3] == "0A"}


def _sockets(pid: int) -> set[str]:
    links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists() or file.is_symlink()]
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}


def test_on_loopback_too_nobody_is_let_in_without_a_token(used: _Used) -> None:
    with httpx2.Client(base_url=used.spawned.url, timeout=30) as http:
        assert http.get("/api/status").status_code == 401
        assert http.post("/api/shutdown").status_code == 401
    assert last_json(run_cli("status", "--data-dir", str(used.data_dir), "--json").stdout)["step"] >= 1
    refused = run_cli("status", "--data-dir", str(used.data_dir), "--json", env={"AJET_TOKEN": "wrong"})
    assert last_json(refused.stderr)["error"]["code"] == "invalid_api_key"
