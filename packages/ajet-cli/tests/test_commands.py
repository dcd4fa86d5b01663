import json
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.commands.server import start
from ajet_cli.main import cli, main
from ajet_cli.spawn import read_token
from ajet_client import Swarm
from ajet_client.testing import FakeServer
from ajet_core.status import JanitorAction, JanitorDeed, JanitorView


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["ajet", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name in ("episodes", "job", "ledger", "merge", "policy", "quickstart", "run", "server", "status"):
        assert f"\n  {name}" in text


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["trian"])
    assert result.exit_code == 2
    assert "trian" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["episodes", "ls"],
        ["episodes", "show"],
        ["episodes", "export"],
        ["episodes", "resolve"],
        ["ledger", "check"],
        ["ledger", "prune"],
        ["job", "init"],
        ["job", "validate"],
        ["merge", "stats"],
        ["merge", "explain"],
        ["merge", "rows"],
        ["merge", "packs"],
        ["server", "start"],
        ["server", "status"],
        ["server", "stop"],
        ["status"],
        ["policy", "simulate"],
        ["quickstart"],
        ["run"],
    ],
)
def test_every_command_takes_json(command: list[str]) -> None:
    assert "--json" in CliRunner().invoke(cli, [*command, "--help"]).output


def test_init_then_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    assert _main(monkeypatch, "job", "init", str(file), "--model", "/no/model", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file)}
    assert _main(monkeypatch, "job", "validate", str(file), "--json") == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["field"]) == ("invalid_config", "model.path")


def test_init_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    assert _main(monkeypatch, "job", "init", str(file)) == 1
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("command", ["status", "stop"])
def test_no_server_in_the_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "server", command, "--data-dir", str(tmp_path)) == 1
    assert f"no server runs in {tmp_path}" in capsys.readouterr().err


def test_status_of_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ajet_client.testing import FakeServer

    with FakeServer().serve() as server:
        assert _main(monkeypatch, "server", "status", "--url", server.url, "--json") == 0
        status = json.loads(capsys.readouterr().out)
        assert _main(monkeypatch, "server", "status", "--url", server.url) == 0
    assert status["state"] == "rolling"
    assert "state     rolling" in capsys.readouterr().out


def test_tiny_and_model_contradict(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["quickstart", "--tiny", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "leave --model out" in result.output


def test_a_missing_model_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _main(monkeypatch, "quickstart", "--model", "/no/model", "--out", str(out), "--json") == 1
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["field"] == "model.path"


def test_the_environment_alone_is_a_job_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AJET_JOB__MODEL__PATH", "/no/model")
    assert _main(monkeypatch, "server", "start", "--port", "0", "--data-dir", str(tmp_path / "d")) == 1
    assert "model.path: '/no/model' is not a folder" in capsys.readouterr().err


def test_without_the_extra_the_quickstart_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("openai", "ajet_server.demo.micro"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("ajet_cli.commands.quickstart", "ajet_cli.quickstart.setup"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert _main(monkeypatch, "quickstart", "--tiny", "--out", str(tmp_path)) == 1
    assert "install ajet-cli[quickstart]" in capsys.readouterr().err


def test_the_token_of_the_folder_is_used(tmp_path: Path) -> None:
    assert read_token(tmp_path) is None
    (tmp_path / "admin-token").write_text("secret\n")
    assert read_token(tmp_path) == "secret"


def test_the_janitor_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    view = JanitorView(
        rounds=7,
        last_round_at=time.time(),
        expired=1,
        dropped=2,
        actions=[
            JanitorAction(at=time.time() - 3700, deed=JanitorDeed.DROPPED, episode_id=None, reason="2 calls"),
            JanitorAction(at=time.time() - 90, deed=JanitorDeed.EXPIRED, episode_id="ep_1", reason="silent\x1b[2J"),
        ],
    )
    with FakeServer().serve() as server:
        monkeypatch.setattr(Swarm, "janitor", lambda _: view)
        assert _main(monkeypatch, "server", "janitor", "--url", server.url) == 0
        lines = capsys.readouterr().out.splitlines()
        assert _main(monkeypatch, "server", "janitor", "--url", server.url, "--json") == 0
        assert JanitorView.model_validate_json(capsys.readouterr().out) == view
    assert lines[0] == "rounds    7, the last 0s ago"
    assert lines[1] == "episodes  expired 1   set aside 0   dropped 2   failed 0"
    assert lines[2:] == ["   1h ago  dropped    2 calls", "   2m ago  expired    ep_1: silent�[2J"]


def test_a_server_listens_on_loopback_by_default() -> None:
    assert {option.name: option.default for option in start.params}["host"] == "127.0.0.1"
