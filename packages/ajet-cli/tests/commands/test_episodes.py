"""`ajet episodes` on a ledger that was written here."""

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_helpers import History, history, ids

from ajet_cli.main import main
from ajet_merge import read_calls
from ajet_server.capture.retention import Rule, prune


@pytest.fixture
def ajet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `ajet episodes`; returns its exit code, and what it wrote to stdout or else to stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["ajet", "episodes", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out or err

    return run


LONG = "x" * 500
TOOL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}


def fill(past: History) -> None:
    past.episode("ep_a")
    past.episode("ep_b", "aborted", group="other")
    past.train("ep_a")
    past.episode("ep_c", kind="eval", task="exam")
    past.open("ep_d")
    past.call("ep_d")
    answer = {"role": "assistant", "content": f"\x1b[31m{LONG}", "reasoning_content": "hm", "tool_calls": [TOOL]}
    runs = {"weight_version": 0, "version_spans": "[[0,0],[1,1]]"}
    past.call("ep_d", 1, "call_ep_d_0", known=4, response=json.dumps(answer), **runs)
    said = [{"role": "user", "content": "turn 0"}, {"role": "assistant", "content": "answer X"}]
    past.call("ep_d", 2, prompt_ids=ids(1, 2, 3, 9), prompt_tokens=4, messages=json.dumps(said))
    past.call("ep_d", 3, prompt_ids=ids(7), prompt_tokens=1, messages="[]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with history(tmp_path / "ledger.sqlite") as past:
        fill(past)
    return tmp_path


def names(output: str) -> list[str]:
    return [line["episode_id"] for line in json.loads(output)["episodes"]]


# ls


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], ["ep_d", "ep_c", "ep_b", "ep_a"]),
        (["--status", "finished"], ["ep_c", "ep_a"]),
        (["--status", "finished", "--status", "open"], ["ep_d", "ep_c", "ep_a"]),
        (["--kind", "eval"], ["ep_c"]),
        (["--group", "other"], ["ep_b"]),
        (["--task", "exam"], ["ep_c"]),
        (["--limit", "2"], ["ep_d", "ep_c"]),
    ],
)
def test_ls(folder: Path, ajet: Any, arguments: list[str], found: list[str]) -> None:
    code, out = ajet("ls", folder, *arguments, "--json")
    assert (code, names(out)) == (0, found)


def test_ls_for_a_person(folder: Path, ajet: Any) -> None:
    code, out = ajet("ls", folder, "--limit", "3")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split() == ["episode", "status", "reward", "calls", "tokens", "weights", "step", "opened", "notes"]
    assert lines[1].split()[:6] == ["ep_c", "finished", "1", "2", "12", "1"]
    assert lines[1].endswith("eval")
    assert lines[-1].startswith("... and 1 older episode")


def test_the_source_is_shown(tmp_path: Path, ajet: Any) -> None:
    with history(tmp_path / "ledger.sqlite") as past:
        past.episode("ep_math", kind="eval")
        past.sql("UPDATE episodes SET source = 'math'")
    assert ajet("ls", tmp_path)[1].splitlines()[1].endswith("  math eval")
    assert "task t   source math   group g" in ajet("show", "ep_math", "--data-dir", tmp_path)[1]


def test_ls_finds_the_folder_in_the_environment(folder: Path, ajet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_DATA_DIR", str(folder))
    assert len(names(ajet("ls", "--json")[1])) == 4


def test_ls_without_a_match(folder: Path, ajet: Any) -> None:
    assert ajet("ls", folder, "--task", "none") == (0, "no such episode\n")


# passk


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Version 0: task t with 1 success of 2 and a lost one, task u with 1 episode; version 1: one success."""
    with history(tmp_path / "ledger.sqlite") as past:
        for name, task, reward in (("a", "t", 1.0), ("b", "t", 0.0), ("c", "u", 0.5)):
            past.open(f"ep_{name}", "eval", task=task)
            past.close(f"ep_{name}", reward=reward)
        past.episode("ep_lost", "aborted", kind="eval")
        past.train(past.episode("ep_train"))
        past.episode("ep_new", kind="eval")
    return tmp_path


def test_passk(evaluated: Path, ajet: Any) -> None:
    code, out = ajet("passk", evaluated, "--json")
    old, new = json.loads(out)["weights"]
    assert (code, old["weight_version"], old["tasks"], old["episodes"], old["lost"]) == (0, 0, 2, 3, 1)
    assert old["passes"] == [
        {"k": 1, "value": 0.25, "tasks": 2, "short": 0},
        {"k": 2, "value": 1.0, "tasks": 1, "short": 1},
    ]
    assert (new["weight_version"], new["passes"]) == (1, [{"k": 1, "value": 1.0, "tasks": 1, "short": 0}])


def test_passk_for_a_person(evaluated: Path, ajet: Any) -> None:
    code, out = ajet("passk", evaluated, "--k", "1, 2", "--success", "0.5", "--task", "t")
    assert code == 0
    assert out.splitlines() == [
        "weights 0: 2 episodes of 1 task, 1 lost   pass@1 0.5 (1 task)   pass@2 1 (1 task)",
        "weights 1: 1 episode of 1 task   pass@1 1 (1 task)   pass@2 - (0 tasks, 1 left out)",
    ]
    assert ajet("passk", evaluated, "--task", "none") == (0, "no finished eval episode\n")


@pytest.mark.parametrize("ks", ["", "0", "1,x", "1,,2"])
def test_passk_with_a_k_that_cannot_be(evaluated: Path, ajet: Any, ks: str) -> None:
    code, err = ajet("passk", evaluated, "--k", ks)
    assert (code, "no list of whole numbers" in err) == (1, True)


def test_what_is_no_data_folder(tmp_path: Path, ajet: Any) -> None:
    code, err = ajet("ls", tmp_path)
    assert (code, "there is no ledger" in err) == (1, True)
    code, err = ajet("ls", "http://127.0.0.1:8700")
    assert (code, "not from a URL" in err) == (1, True)


def test_while_a_server_holds_the_ledger(tmp_path: Path, ajet: Any) -> None:
    with history(tmp_path / "ledger.sqlite") as past:
        fill(past)
        assert len(names(ajet("ls", tmp_path, "--json")[1])) == 4


# show


def test_show(folder: Path, ajet: Any) -> None:
    code, out = ajet("show", "ep_d", "--data-dir", folder, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["episode"]["status"], found["episode"]["calls"]) == ("open", 4)
    assert (found["forest"]["tokens_unmerged"], found["forest"]["tokens_forest"]) == (21, 14)
    first, second = found["calls"][:2]
    assert first["logprobs"] == {"mean": -0.75, "min": -1.0}
    assert (second["parent_id"], second["prompt_tokens"], second["new_prompt_tokens"]) == ("call_ep_d_0", 6, 2)
    assert second["messages"] == [{"role": "user", "content": "turn 1"}]
    assert second["response"]["tool_calls"] == [TOOL]
    assert found["departures"] is None


def test_show_for_a_person(folder: Path, ajet: Any) -> None:
    code, out = ajet("show", "ep_d", "--data-dir", folder)
    assert code == 0
    for expected in (
        "episode ep_d   train, open",
        "4 calls, 13 tokens in prompts, 8 sampled, weights 0-1",
        "forest of 14 tokens for 21 unmerged (1.5x)",
        "#1 call_ep_d_1, goes on from #0: 6 tokens in (2 new), 2 sampled (stop), weights 0, from token 1 on 1, "
        "perplexity 2.12",
        "  user       turn 1",
        "  assistant  (thinks) hm \N{REPLACEMENT CHARACTER}[31mxxx",
        "characters more, with --full)",
        "(a raw prompt)",
    ):
        assert expected in out
    assert "\x1b" not in out
    full = ajet("show", "ep_d", "--data-dir", folder, "--full")[1]
    assert LONG in full
    assert '(calls) {"name": "look", "arguments": "{}"}' in full


def test_show_explains(folder: Path, ajet: Any) -> None:
    out = ajet("show", "ep_d", "--data-dir", folder, "--explain", "--json")[1]
    assert [(found["call_id"], found["cause"]) for found in json.loads(out)["departures"]] == [
        ("call_ep_d_2", "context_edited"), ("call_ep_d_3", "nothing_shared"),
    ]  # fmt: skip
    assert "context_edited" in ajet("show", "ep_d", "--data-dir", folder, "--explain")[1]
    code, err = ajet("show", "ep_d", "--data-dir", folder, "--tokenizer", folder)
    assert (code, "no effect without --explain" in err) == (1, True)
    code, err = ajet("show", "ep_d", "--data-dir", folder, "--explain", "--tokenizer", folder)
    assert (code, "tokenizer.json is no file" in err) == (1, True)


def test_show_what_was_dropped(folder: Path, ajet: Any) -> None:
    with history(folder / "ledger.sqlite") as past:
        prune(past.ledger, Rule(None, 1.0, 1))
    out = ajet("show", "ep_b", "--data-dir", folder)[1]
    assert "2 calls, 8 tokens in prompts, 4 sampled" in out
    assert "what its calls held was dropped" in out
    assert json.loads(ajet("show", "ep_b", "--data-dir", folder, "--explain", "--json")[1])["forest"] is None


def test_show_an_episode_that_is_not_there(folder: Path, ajet: Any) -> None:
    code, err = ajet("show", "ep_x", "--data-dir", folder, "--json")
    assert (code, json.loads(err)["error"]["code"]) == (1, "not_found")


# export


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz", "calls.parquet"])
def test_export(folder: Path, ajet: Any, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    code, out = ajet("export", folder / name, "--data-dir", folder, "--json")
    assert code == 0
    assert json.loads(out) == {
        "calls": 4, "tokens": 24, "dropped": 0, "episodes": 2, "file": str(folder / name), "episodes_file": None,
    }  # fmt: skip
    assert [call.episode_id for call in read_calls(folder / name)] == ["ep_a", "ep_a", "ep_c", "ep_c"]


def test_export_for_a_person_and_with_rewards(folder: Path, ajet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rewards = folder / "calls.jsonl", folder / "episodes.jsonl"
    code, out = ajet("export", calls, "--data-dir", folder, "--status", "open", "--episodes", rewards)
    assert (code, out.splitlines()) == (0, ["4 calls of 1 episode, 21 tokens", f"wrote {calls}", f"wrote {rewards}"])
    (line,) = map(json.loads, rewards.read_text().splitlines())
    assert (line["episode_id"], line["reward"]) == ("ep_d", None)
    monkeypatch.setattr("sys.argv", ["ajet", "merge", "stats", str(calls), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calls.csv"], "suffix must be .jsonl, .jsonl.gz or .parquet"),
        (["c.jsonl", "--episodes", "e.parquet"], "must be .jsonl or .jsonl.gz"),
        (["c.jsonl", "--episodes", "c.jsonl"], "give two files"),
        (["c.jsonl", "--task", "none"], "nothing was written"),
        (["none/c.jsonl"], "cannot be written"),
    ],
)
def test_export_refuses(
    folder: Path, ajet: Any, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, err = ajet("export", *arguments, "--data-dir", folder)
    assert (code, message in err) == (1, True), err
    assert {file.name for file in folder.iterdir() if not file.name.startswith("ledger.sqlite")} == set()


def test_without_the_server_package(folder: Path, ajet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_cli.commands.datafolder.find_spec", lambda name: None)
    code, err = ajet("ls", folder)
    assert (code, "install ajet-cli[server]" in err) == (1, True)


def test_roles_are_shown(tmp_path: Path, ajet: Any) -> None:
    with history(tmp_path / "ledger.sqlite") as past:
        past.open("ep")
        for seq, role in enumerate(("white", "black")):
            past.call("ep", seq, role=role)
        past.close("ep", reward=0.25, rewards={"white": 1.0, "black": -0.5})
    code, out = ajet("show", "ep", "--data-dir", tmp_path)
    assert code == 0
    assert "finished, reward 0.25 (black -0.5, white 1)" in out
    assert "#0 call_ep_0 as white: " in out
    assert "#1 call_ep_1 as black: " in out
    code, out = ajet("show", "ep", "--data-dir", tmp_path, "--json")
    found = json.loads(out)
    assert (found["episode"]["rewards"], found["calls"][1]["role"]) == ({"white": 1.0, "black": -0.5}, "black")
