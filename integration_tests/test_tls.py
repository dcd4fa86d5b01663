"""HTTPS from end to end: a real server, the client, the command line, and the official OpenAI SDK."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from openai import DefaultHttpxClient, OpenAI
from tls_helpers import Authority

from ajet_cli.spawn import SpawnedServer, spawn_server
from ajet_client import AsyncSwarm, Episode, Swarm
from ajet_core.errors import RequestError, UnavailableError
from live_server import BOOT_S, last_json, micro_job, run_cli


class _Secure:
    def __init__(self, folder: Path, model: Path) -> None:
        folder.mkdir()
        self.data_dir, self._job = folder / "data", folder / "job.yaml"
        self._job.write_text(yaml.safe_dump(micro_job(model)), "utf-8")
        self.authority = Authority(folder / "authority")
        self._issued = self.authority.issue("server")

    def start(self, *more: str) -> SpawnedServer:
        files = ("--tls-cert", str(self._issued.cert), "--tls-key", str(self._issued.key))
        return spawn_server(self.data_dir, ["--port", "0", "--job", str(self._job), *files, *more])


@pytest.fixture
def secure(tmp_path: Path, micro_model: Path) -> _Secure:
    return _Secure(tmp_path / "secure", micro_model)


@pytest.fixture
def spawned(secure: _Secure) -> Iterator[SpawnedServer]:
    started = secure.start()
    yield started
    started.process.terminate()
    started.process.wait(30)


def test_https_from_end_to_end(secure: _Secure, spawned: SpawnedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = secure.authority.cert
    assert spawned.url.startswith("https://127.0.0.1:")
    with Swarm(spawned.url, ca_file=ca, timeout=30) as swarm:
        swarm.wait_until_serving(BOOT_S)
        with swarm.episode("a task") as episode:
            assert episode.base_url == f"{spawned.url}/v1"
            told = DefaultHttpxClient(verify=ssl.create_default_context(cafile=ca))
            assert _chat(episode, http_client=told)
            with monkeypatch.context() as environment:
                environment.setenv("SSL_CERT_FILE", str(ca))
                assert _chat(episode)
            episode.reward(1.0)
    assert asyncio.run(_state(spawned.url, ca)) == "rolling"
    _refuse_the_distrustful(spawned.url)
    _refuse_old_and_clear(spawned.url, ca)
    _command_line(secure, ca)


def _chat(episode: Episode, **client: Any) -> int:
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0, **client) as openai:
        answer = openai.chat.completions.create(
            model=episode.model, messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        return answer.usage.completion_tokens if answer.usage else 0


async def _state(url: str, ca: Path) -> str:
    async with AsyncSwarm(url, ca_file=ca, timeout=30) as swarm:
        return (await swarm.status()).state


def _refuse_the_distrustful(url: str) -> None:
    """Without the authority nothing is sent, and the cause is told."""
    with Swarm(url, timeout=1) as swarm, pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        swarm.status()


def _refuse_old_and_clear(url: str, ca: Path) -> None:
    old = ssl.create_default_context(cafile=ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        old.minimum_version = ssl.TLSVersion.TLSv1_1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with httpx2.Client(verify=old) as http, pytest.raises(httpx2.ConnectError, match=r"(?i)version|protocol"):
        http.get(f"{url}/healthz")
    with httpx2.Client() as http, pytest.raises(httpx2.TransportError):
        http.get(f"{url.replace('https', 'http')}/healthz")


def _command_line(secure: _Secure, ca: Path) -> None:
    where = ("--data-dir", str(secure.data_dir))
    status = run_cli("status", *where, "--ca", str(ca), "--json")
    assert last_json(status.stdout)["state"] in ("rolling", "draining", "updating", "syncing"), status.stderr
    by_environment = run_cli("status", *where, "--json", env={"AJET_CA": str(ca)})
    assert by_environment.returncode == 0, by_environment.stderr
    by_default = run_cli("status", *where, "--json", env={"SSL_CERT_FILE": str(ca)})
    assert by_default.returncode == 0, by_default.stderr
    stopped = run_cli("server", "stop", *where, "--ca", str(ca))
    assert stopped.stdout.startswith("stopped https://"), stopped.stderr


def test_a_server_that_asks_clients_for_certificates(secure: _Secure) -> None:
    mine, ca = secure.authority.issue("client"), secure.authority.cert
    spawned = secure.start("--tls-client-ca", str(ca))
    try:
        with Swarm(spawned.url, ca_file=ca, client_cert=(mine.cert, mine.key), timeout=30) as swarm:
            assert swarm.status().name == "test"
        with Swarm(spawned.url, ca_file=ca, timeout=1) as swarm, pytest.raises(UnavailableError):
            swarm.status()
        where = ("--data-dir", str(secure.data_dir), "--ca", str(ca))
        assert run_cli("status", *where, "--client-cert", str(mine.cert), str(mine.key)).returncode == 0
    finally:
        spawned.process.terminate()
        spawned.process.wait(30)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--tls-cert", "{cert}"], "tls_key"),
        (["--tls-client-ca", "{cert}"], "tls_cert"),
        (["--tls-cert", "{cert}", "--tls-key", "{cert}"], "tls_key"),
    ],
)
def test_what_is_wrong_is_told_at_the_start(secure: _Secure, arguments: list[str], field: str) -> None:
    given = [argument.format(cert=secure.authority.cert) for argument in arguments]
    refused = run_cli("server", "start", "--port", "0", "--data-dir", str(secure.data_dir), *given, "--json")
    assert refused.returncode == 1
    assert last_json(refused.stderr)["error"]["field"] == field


def test_clear_text_beyond_loopback_is_told(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    spawned = spawn_server(data_dir, ["--host", "0.0.0.0", "--port", "0"])
    try:
        assert run_cli("server", "stop", "--data-dir", str(data_dir)).returncode == 0
        spawned.process.wait(30)
        assert "clear text" in spawned.log.read_text("utf-8")
    finally:
        spawned.process.kill()


def test_a_file_that_has_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="ca_file has no effect"):
        Swarm("http://127.0.0.1:1", ca_file=tmp_path / "ca.pem")
    with pytest.raises(RequestError, match=r"ca_file: .* cannot be used"):
        Swarm("https://127.0.0.1:1", ca_file=tmp_path / "ca.pem")
    with pytest.raises(RequestError, match=r"client_cert: .* cannot be used"):
        Swarm("https://127.0.0.1:1", client_cert=(tmp_path / "a.pem", tmp_path / "a.key"))
