"""`ajet merge` over real files."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet_cli.commands.merge import drawing
from ajet_cli.main import main
from ajet_merge import Call
from ajet_merge.messages import Context
from ajet_merge.records import Record, read_calls, write_calls, write_records

CONFIG = {
    "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 500,
}  # fmt: skip


def ajet(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["ajet", "merge", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.fixture
def calls() -> list[Call]:
    """Two episodes of one task; the second leaves its own path once."""
    task = list(range(100, 120))
    turn = [*task, 1, 2, 3, 40, 41]
    return [
        Call(task, [1, 2, 3], [-1, -2, -3], call_id="a0", episode_id="a", group_id="g"),
        Call(turn, [4], [-1], call_id="a1", episode_id="a", group_id="g"),
        Call(task, [5, 6], [-1, -2], call_id="b0", episode_id="b", group_id="g"),
        Call([*task, 5, 7, 42], [8], [-1], call_id="b1", episode_id="b", group_id="g"),
    ]


@pytest.fixture(params=["calls.jsonl", "calls.jsonl.gz", "calls.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path, calls: list[Call]) -> Path:
    if request.param.endswith("parquet"):
        pytest.importorskip("pyarrow")
    write_calls(tmp_path / request.param, calls)
    return tmp_path / request.param


@pytest.fixture
def lines(tmp_path: Path, calls: list[Call]) -> Path:
    write_calls(tmp_path / "calls.jsonl", calls)
    return tmp_path / "calls.jsonl"


def one_line(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=pytest.fail)


# stats


def test_stats(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ajet(monkeypatch, "stats", file, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert (found["tokens_unmerged"], found["tokens_linear"], found["tokens_forest"]) == (95, 72, 31)
    assert (found["calls"], found["occurrences"], found["excluded"], found["groups"]) == (4, 7, 0, 1)
    assert found["ratio_forest"] == 95 / 31
    assert found["flops"] is None
    assert found["episodes"] == [
        {"episode_id": "a", "calls": 2, "tokens_unmerged": 49, "tokens_forest": 26},
        {"episode_id": "b", "calls": 2, "tokens_unmerged": 46, "tokens_forest": 25},
    ]


def test_stats_for_a_person(lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ajet(monkeypatch, "stats", lines) == 0
    text = capsys.readouterr().out
    assert "4 calls, 2 episodes, 1 group\n" in text
    assert [line.split() for line in text.splitlines() if line.startswith("forest")] == [
        ["forest", "31", "3.1x", "463"]
    ]
    assert text.count("█") > text.count("░") > 0
    assert max(map(len, text.splitlines())) <= 80


def test_stats_estimates_flops(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    assert ajet(monkeypatch, "stats", lines, "--model-config", config, "--json") == 0
    flops = one_line(capsys.readouterr().out)["flops"]
    assert flops["unmerged"] > flops["linear"] > flops["forest"] > 0
    assert ajet(monkeypatch, "stats", lines, "--model-config", config) == 0
    assert f"{flops['forest']:.2e}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json cannot be read as JSON: .*No such file"),
        ("{", "config.json cannot be read as JSON"),
        ("[]", "config.json holds a list; a JSON object is right"),
        ("{}", "num_attention_heads = None"),
        ('{"text_config": null}', "text_config = None: must be an object"),
        ('{"text_config": [1]}', r"text_config = \[1\]"),
    ],
)
def test_bad_model_configs(
    content: str | None,
    message: str,
    lines: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert ajet(monkeypatch, "stats", lines, "--model-config", tmp_path / "config.json") == 1
    _error(capsys, message)


def test_many_episodes_and_odd_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["", "[bold]x[/bold]", "\x1b[31mred", *(f"e{n}" for n in range(22))]
    write_calls(tmp_path / "x.jsonl", [Call([1] * (30 - n), [], [], episode_id=name) for n, name in enumerate(names)])
    assert ajet(monkeypatch, "stats", tmp_path / "x.jsonl") == 0
    text = capsys.readouterr().out
    assert "25 calls, 24 episodes, 0 groups" in text
    assert "(none)" in text
    assert "[bold]x[/bold]" in text
    assert "�[31mred" in text
    assert text.endswith("... and 5 episodes more, all of them with --json\n")


# explain


def test_explain(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ajet(monkeypatch, "explain", file, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert [(one["call_id"], one["shared"]) for one in found["departures"]] == [("b0", 20), ("b1", 21)]
    assert found["cost"] == sum(one["cost"] for one in found["departures"])
    assert ajet(monkeypatch, "explain", file) == 0
    assert "'b1'" in capsys.readouterr().out


def test_explain_reads_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user, answer = {"role": "user", "content": "add"}, {"role": "assistant", "content": "3"}
    asked = Context((user,), response=answer | {"reasoning_content": "1 + 2"})
    told = Context((user, answer, user))
    ids = list(range(10, 40))
    made = [Call(ids, [1, 2, 3, 4], [-1] * 4), Call([*ids, 3, 4, 5], [6], [-1])]
    write_records(tmp_path / "x.jsonl", map(Record, made, (asked, told)))
    assert ajet(monkeypatch, "explain", tmp_path / "x.jsonl", "--json") == 0
    (departure,) = one_line(capsys.readouterr().out)["departures"]
    assert (departure["cause"], departure["evidence"]) == ("stripped_reasoning", "messages")


def _tokenizer(folder: Path, size: int = 200) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{token}": token for token in range(size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_explain_with_a_tokenizer(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (_tokenizer(tmp_path), tmp_path):
        assert ajet(monkeypatch, "explain", lines, "--tokenizer", path) == 0
        assert "w7 w42" in capsys.readouterr().out


def test_bad_tokenizers(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = _tokenizer(tmp_path, 6)
    for path, message in (
        (small, "tokenizer.json has no token .*: give the tokenizer of the model"),
        (tmp_path / "none.json", "none.json is no file: give a tokenizer.json, or a folder with one"),
        (lines, "calls.jsonl cannot be read as a tokenizer"),
    ):
        assert ajet(monkeypatch, "explain", lines, "--tokenizer", path) == 1
        _error(capsys, message)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert ajet(monkeypatch, "explain", lines, "--tokenizer", small) == 1
    _error(capsys, "pip install tokenizers")


def test_explain_writes_html(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert ajet(monkeypatch, "explain", lines, "--html", page) == 0
    assert capsys.readouterr().out.endswith(f"wrote {page}\n")
    assert "b1" in page.read_text(encoding="utf-8")
    assert ajet(monkeypatch, "explain", lines, "--html", tmp_path / "nowhere" / "report.html") == 1
    _error(capsys, "report.html cannot be written: No such file")


# rows


def test_rows(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert ajet(monkeypatch, "rows", file, "--out", out, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert [row["call_ids"] for row in found["rows"]] == [["a0", "a1"], ["b1"], ["b0"]]
    assert (found["tokens_linear"], found["out"]) == (72, str(out))
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(row["tokens"]) for row in written] == [row["tokens"] for row in found["rows"]] == [26, 24, 22]
    assert [sum(row["mask"]) for row in written] == [row["trained"] for row in found["rows"]] == [4, 1, 2]
    assert ajet(monkeypatch, "rows", file) == 0
    text = capsys.readouterr().out
    assert text.startswith("3 rows of 72 tokens, for 4 calls of 95")
    assert "a0 a1" in text


def test_rows_as_parquet(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert ajet(monkeypatch, "rows", lines, "--out", tmp_path / "rows.parquet") == 0
    assert parquet.read_table(tmp_path / "rows.parquet").column("calls").to_pylist() == [[0, 1], [3], [2]]


@pytest.mark.parametrize(
    ("mean", "weights"),
    [
        ("token_mean", [4 / 7, 1 / 7, 2 / 7]),
        ("sequence_mean", [0.5, 0.25, 0.25]),
        ("episode_mean", [0.5, 0.5 / 3, 1 / 3]),
        ("group_mean", [4 / 7, 1 / 7, 2 / 7]),
    ],
)
def test_weights_replace_those_of_the_file(
    mean: str,
    weights: list[float],
    lines: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ajet(monkeypatch, "rows", lines, "--weights", mean, "--json") == 0
    assert [row["weight"] for row in one_line(capsys.readouterr().out)["rows"]] == pytest.approx(weights)
    assert ajet(monkeypatch, "packs", lines, "--budget", 26, "--weights", mean, "--json") == 0
    packs = one_line(capsys.readouterr().out)["packs"]
    assert sum(pack["weight"] for pack in packs) == pytest.approx(1)


def test_weights_need_the_names_they_go_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_calls(tmp_path / "x.jsonl", [Call([1], [2], [-1], call_id="lost")])
    assert ajet(monkeypatch, "rows", tmp_path / "x.jsonl", "--weights", "episode_mean") == 1
    _error(capsys, "call 'lost': episode_id is empty")


# packs


def test_packs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packs.npz"
    assert ajet(monkeypatch, "packs", file, "--budget", 26, "--ranks", 3, "--out", out, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert (found["tokens"], found["tokens_forest"], found["repeated"], found["dummies"]) == (51, 31, 20, 1)
    assert found["fill"] == 51 / 52
    assert [pack["rank"] for pack in found["packs"]] == [0, 1, 2]
    assert [pack["dummy"] for pack in found["packs"]] == [False, False, True]
    assert sum(pack["occurrences"] for pack in found["packs"]) == 7
    with np.load(out) as arrays:
        assert arrays["is_dummy"].tolist() == [False, False, True]
        assert arrays["0.tokens"].size == found["packs"][0]["tokens"]
        trained = arrays["occurrences.call"][np.concatenate([arrays["0.occ_index"], arrays["1.occ_index"]])]
        assert sorted(trained.tolist()) == [0, 0, 0, 1, 2, 2, 3]
    assert ajet(monkeypatch, "packs", file, "--budget", 26, "--ranks", 3) == 0
    text = capsys.readouterr().out
    assert text.startswith("3 packs, 1 of them dummies; the others are 98.1% full\n51 tokens: 31 of the forest, 20 rep")
    assert max(map(len, text.splitlines())) <= 80


def test_packs_leave_out_what_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [Call([1, 2], [3], [-1]), Call([1, 2, 3, 4, 5], [], []), Call([1, 6, 7], [8], [-1])]
    write_calls(tmp_path / "calls.jsonl", made)
    assert ajet(monkeypatch, "packs", tmp_path / "calls.jsonl", "--budget", 4, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert (found["tokens"], found["tokens_forest"], found["repeated"], found["left_out"]) == (7, 8, 1, 2)
    assert ajet(monkeypatch, "packs", tmp_path / "calls.jsonl", "--budget", 4) == 0
    said = "7 tokens: 6 of the forest, 1 repeated by cutting it; 2 tokens train nothing and are left out\n"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_that_train_nothing_make_no_packs(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "calls.jsonl", tmp_path / "packs.npz"
    write_calls(file, [Call([1, 2], [], [])])
    assert ajet(monkeypatch, "packs", file, "--budget", 4, "--ranks", ranks, "--out", out, "--json") == 0
    found = one_line(capsys.readouterr().out)
    assert (found["packs"], found["tokens"], found["fill"], found["left_out"]) == ([], 0, 0.0, 2)
    with np.load(out) as arrays:
        kinds = {name: arrays[name].dtype.kind for name in ("rank", "is_dummy", "cost")}
        assert kinds == {"rank": "i", "is_dummy": "b", "cost": "f"}
        assert arrays["rank"].size == 0
    assert ajet(monkeypatch, "packs", file, "--budget", 4, "--ranks", ranks) == 0
    assert "0 packs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--budget", 10], 1, r"call 0 \('a0'\): 23 tokens do not fit budget=10"),
        (["--budget", 100, "--max-path", 10], 1, "do not fit max_path=10"),
        (["--budget", 26, "--out", "packs.txt"], 1, "packs.txt: the suffix must be .npz"),
        (["--budget", 26, "--out", "nowhere/packs.npz"], 1, "packs.npz cannot be written: No such file"),
        (["--budget", 1], 2, "1 is not in the range x>=2"),
        (["--budget", 26, "--ranks", 0], 2, "0 is not in the range x>=1"),
        ([], 2, "Missing option '--budget'"),
        (["--budget", 26, "--weights", "mean"], 2, "'mean' is not one of"),
    ],
)
def test_bad_options_of_packs(
    options: list[object],
    code: int,
    message: str,
    lines: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(lines.parent)
    assert ajet(monkeypatch, "packs", lines, *options) == code
    _error(capsys, message)


# Every command


@pytest.mark.parametrize("command", [["stats"], ["explain"], ["rows"], ["packs", "--budget", "99"]])
def test_bad_files(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt_ids": [1], "completion_ids": []}\n{"prompt_ids": [1], "completion_ids": [], "my": 1}\n')
    assert ajet(monkeypatch, *command, bad) == 1
    _error(capsys, r"bad\.jsonl, line 2: call '': my is no key of a call")
    assert ajet(monkeypatch, *command, bad, "--ignore", "my") == 0
    assert capsys.readouterr().err == ""
    assert ajet(monkeypatch, *command, tmp_path / "none.jsonl", "--json") == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "invalid_request"
    assert "none.jsonl cannot be read: No such file" in error["message"]


def test_without_the_extra_it_says_what_to_install(
    lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ajet_merge", None)
    assert ajet(monkeypatch, "stats", lines) == 1
    _error(capsys, r"pip install 'ajet-cli\[merge\]'")
    assert ajet(monkeypatch, "--help") == 0


def test_a_large_file_shows_progress_on_a_terminal(
    lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ajet_cli.commands.merge.source._LARGE_BYTES", 10)
    assert ajet(monkeypatch, "stats", lines, "--json") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert ajet(monkeypatch, "stats", lines, "--json") == 0
    output = capsys.readouterr()
    assert "reading calls.jsonl" in output.err
    one_line(output.out)


def test_long_lines_are_broken_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{'word ' * 30}end\nshort  line"
    assert drawing.wrapped(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    broken = drawing.wrapped(text).splitlines()
    assert max(map(len, broken)) <= 40
    assert (broken[1][:8], broken[-1]) == ("    word", "short  line")


@pytest.mark.parametrize("command", [["explain", "--html"], ["rows", "--out"], ["packs", "--budget", "99", "--out"]])
def test_the_file_is_not_written_over(
    command: list[str], lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lines.read_bytes()
    monkeypatch.chdir(lines.parent)
    assert ajet(monkeypatch, *command, lines.name, lines) == 1
    _error(capsys, "calls.jsonl is the file that is read; give another")
    assert lines.read_bytes() == before


def test_the_file_is_not_changed(lines: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    before = lines.read_bytes()
    assert ajet(monkeypatch, "rows", lines, "--weights", "token_mean", "--json") == 0
    assert lines.read_bytes() == before
    assert len(read_calls(lines)) == len(calls)


def _error(capsys: pytest.CaptureFixture[str], message: str) -> None:
    """The last command printed one error, no output and no traceback."""
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert re.search(message, output.err), output.err
