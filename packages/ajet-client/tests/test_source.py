import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ajet_client.source import BrokenAgentError, Place, SourceFile, changed, parse_place, place_of, stamp
from ajet_core.errors import RequestError


def write(path: Path, text: str) -> Path:
    """Writes a file as an editor does: under another name, then in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}~")
    fresh.write_text(text)
    fresh.replace(path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SourceFile]:
    path = write(tmp_path / "agent.py", "def agent(episode): return 1\n")
    source = SourceFile(parse_place(str(path)))
    yield source
    source.close()


def test_a_place_is_a_file_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "some.py", "")
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "some.py")
    assert parse_place("some.py") == Place(file, None, "agent")
    assert parse_place("some.py:play") == parse_place(f"{file}:play") == Place(file, None, "play")
    for wrong in ("some", "some.txt:play", "some.py:", "some.py:a.b", "some.py:a:b", "", "other.py"):
        with pytest.raises(RequestError, match="agent") as caught:
            parse_place(wrong)
        assert caught.value.field == "agent"


def test_a_function_has_a_place_if_another_process_can_find_it() -> None:
    assert place_of(write) == Place(None, __name__, "write")

    def local() -> None: ...

    functions: list[Callable[..., object]] = [local, lambda: None, "".join, Place.__str__]
    for function in functions:
        with pytest.raises(RequestError, match="top level of a module"):
            place_of(function)


def test_a_file_is_loaded_with_what_lies_beside_it(source: SourceFile, tmp_path: Path) -> None:
    write(tmp_path / "score.py", "from tools.digits import share\n")
    write(tmp_path / "tools" / "__init__.py", "")
    write(tmp_path / "tools" / "digits.py", "share = 0.5\n")
    write(tmp_path / "agent.py", "import json\nfrom score import share\ndef agent(episode): return share\n")
    assert source.load()(None) == 0.5
    names = {"agent.py", "score.py", "tools/__init__.py", "tools/digits.py"}
    assert {str(Path(path).relative_to(tmp_path)) for path in source.sources} == names
    source.close()
    assert {"score", "tools", "tools.digits"} & set(sys.modules) == set()


def test_an_edit_is_seen_even_within_a_second_and_of_the_same_size(source: SourceFile, tmp_path: Path) -> None:
    helper = write(tmp_path / "helper.py", "score = 0.1\n")
    main = write(tmp_path / "agent.py", "from helper import score\ndef agent(episode): return score\n")
    for number in range(2, 9):
        assert source.load()(None) == (number - 1) / 10
        assert not changed(source.sources)
        write(helper, f"score = 0.{number}\n")
        os.utime(helper, ns=(0, 0))
        assert changed(source.sources)
    assert source.load()(None) == 0.8
    main.write_text("def agent(episode): return 0.9\n")
    assert changed(source.sources)
    assert source.load()(None) == 0.9
    assert list(tmp_path.rglob("__pycache__")) == []


def test_a_module_that_is_no_longer_imported_is_no_longer_watched(source: SourceFile, tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "")
    write(tmp_path / "agent.py", "import helper\ndef agent(episode): return 1\n")
    source.load()
    write(tmp_path / "agent.py", "def agent(episode): return 2\n")
    source.load()
    assert list(source.sources) == [str(tmp_path / "agent.py")]


def test_what_is_installed_is_not_taken_over(source: SourceFile, tmp_path: Path) -> None:
    write(tmp_path / "agent.py", "import email.mime.text\ndef agent(episode): return 1\n")
    write(tmp_path / "mime.py", "raise AssertionError")
    source.load()
    assert list(source.sources) == [str(tmp_path / "agent.py")]


def test_classes_of_the_file_know_their_module(source: SourceFile, tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\ndef agent(episode): return A().x\n"
    )
    write(tmp_path / "agent.py", code)
    assert source.load()(None) == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def agent(episode) return 1\n", "SyntaxError"),
        ("import helper_that_is_missing\n", "ModuleNotFoundError: No module named 'helper_that_is_missing'"),
        ("x = 1 / 0\n", "ZeroDivisionError"),
        ("import sys; sys.exit(3)\n", "SystemExit: 3"),
        ("agent = 1\n", "it has no function 'agent'"),
    ],
)
def test_a_broken_file_is_told_with_its_own_lines_only(
    source: SourceFile, tmp_path: Path, code: str, message: str
) -> None:
    write(tmp_path / "agent.py", code)
    with pytest.raises(BrokenAgentError, match=message) as caught:
        source.load()
    assert "importlib" not in str(caught.value)
    assert "source.py" not in str(caught.value)
    assert not changed(caught.value.sources)
    write(tmp_path / "agent.py", "def agent(episode): return 2\n")
    assert changed(caught.value.sources)
    assert source.load()(None) == 2


def test_a_missing_module_that_is_written_later_counts_as_a_change(source: SourceFile, tmp_path: Path) -> None:
    write(tmp_path / "agent.py", "from later import score\ndef agent(episode): return score\n")
    with pytest.raises(BrokenAgentError) as caught:
        source.load()
    write(tmp_path / "later.py", "score = 3\n")
    assert changed(caught.value.sources)
    assert source.load()(None) == 3


def test_a_file_that_is_gone_has_no_stamp(tmp_path: Path) -> None:
    path = write(tmp_path / "a.py", "")
    before = stamp(path)
    path.unlink()
    assert before is not None
    assert stamp(path) is None
    assert changed({str(path): before})
    assert not changed({str(path): None})
