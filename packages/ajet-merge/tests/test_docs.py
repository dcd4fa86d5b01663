"""The pages of the documentation: their code runs as shown and prints what they show; figures and links are current.

A source distribution has no `docs` folder: what is not there is skipped.
"""

import ast
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs" / "merge"
PAGES = [PACKAGE / "README.md", *(DOCS / f"{name}.md" for name in ("README", "forest", "tutorial", "adapters"))]
AJET = shutil.which("ajet", path=str(Path(sys.executable).parent))

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.fixture(autouse=True)
def once(backend: str) -> None:
    if backend != "cython":
        pytest.skip("pages are checked on one backend; others check that both give the same")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with what the pages read."""
    if (DOCS / "example-calls.jsonl").exists():
        shutil.copy(DOCS / "example-calls.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Block:
    language: str
    source: str
    printed: str | None  # what the page shows below it
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = read(page)
    for found in BLOCK.finditer(text):
        yield Block(found[1], found[2], found[3], text.count("\n", 0, found.start(2)))


def read(page: Path) -> str:
    if not page.exists():
        pytest.skip(f"{page.name} is not part of this distribution")
    return page.read_text(encoding="utf-8")


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_python_blocks_run_in_order_and_print_what_is_shown(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": page.stem}
    unset: set[str] = set()  # names of blocks that could not run
    lines: list[int] = []
    for block in blocks(page):
        if block.language != "python":
            continue
        tree = ast.parse(block.source)
        if (names(tree, ast.Load) - names(tree, ast.Store)) & unset or not runs(page, block, namespace):
            unset |= names(tree, ast.Store)
            lines.append(block.line)
    if lines:
        pytest.skip(f"{page.name}: the blocks at lines {lines} need packages that are not installed")


def runs(page: Path, block: Block, namespace: dict[str, Any]) -> bool:
    """Run a block; False if a package that it needs is not installed."""
    printed = StringIO()
    code = compile("\n" * block.line + block.source, str(page), "exec")  # tracebacks show lines of the page
    try:
        with redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:
        if isinstance(error.__cause__ or error, ModuleNotFoundError):
            return False
        raise
    if block.printed is not None:
        assert trimmed(printed.getvalue()) == trimmed(block.printed), f"{page.name}, line {block.line}"
    return True


def names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """The names that a block reads, or sets."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}
    if context is ast.Store:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_commands_print_what_is_shown(page: Path, folder: Path) -> None:
    consoles = [block for block in blocks(page) if block.language == "console"]
    if consoles and AJET is None:
        pytest.skip("the ajet command is not installed")
    for block in consoles:
        printed: list[str] = []
        for line in re.findall(r"^\$ (.*)$", block.source, re.MULTILINE):
            printed += [f"$ {line}", *trimmed(output(line))]
        assert [line for line in printed if line] == [line for line in trimmed(block.source) if line]


def output(line: str) -> str:
    command, *arguments = shlex.split(line)
    assert command == "ajet"
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run([str(AJET), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [*PAGES, DOCS / "api.md"], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)
    if not DOCS.exists():
        pytest.skip("the pages linked to are not part of this distribution")
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them, and those it sets itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def test_figures_are_what_the_program_draws() -> None:
    if not DOCS.exists():
        pytest.skip("the figures are not part of this distribution")
    figures = runpy.run_path(str(DOCS / "figures.py"))["FIGURES"]
    for name, draw in figures.items():
        assert draw() == (DOCS / name).read_text(encoding="utf-8"), f"{name}: run python docs/merge/figures.py"
    assert set(figures) == {path.name for path in DOCS.glob("*.svg")}
