"""Documents that say which test shows what: every row names at least one, and each of them exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FOLDERS = {"integration": _ROOT / "integration_tests"} | {
    name: _ROOT / "packages" / f"ajet-{name}" / "tests" for name in ("core", "merge", "server", "client", "cli")
}
_TEST = re.compile(r"`([a-z]+)/([\w/]+\.py)::(test_\w+)`")


def _rows(document: str) -> list[list[str]]:
    """The cells of the rows of every table whose last column is of tests."""
    rows: list[list[str]] = []
    within = False
    for line in (_ROOT / "docs" / document).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[-1] in ("test", "tests"):
            within = True
        elif not cells:
            within = False
        elif within and not set("".join(cells)) <= set("-: "):
            rows.append(cells)
    return rows


def _named(document: str) -> Iterator[tuple[str, str, str]]:
    yield from dict.fromkeys(_TEST.findall((_ROOT / "docs" / document).read_text("utf-8")))


@cache
def _tests_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(
    "name",
    [f"{where}/{file}::{test}" for document in ("security.md", "cases.md") for where, file, test in _named(document)],
)
def test_a_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    where, _, file = path.partition("/")
    assert test in _tests_in(_FOLDERS[where] / file)


@pytest.mark.parametrize("document", ["security.md", "cases.md"])
def test_every_row_names_a_test_and_nothing_else(document: str) -> None:
    rows = _rows(document)
    assert len(rows) > 20
    for cells in rows:
        assert _TEST.findall(cells[-1]), cells
        assert not _TEST.sub("", cells[-1]).strip(" ,"), cells
    assert len({cells[0] for cells in rows}) == len(rows), "no line is there twice"


def test_every_case_is_there() -> None:
    assert [int(cells[0]) for cells in _rows("cases.md")] == list(range(1, 29))
