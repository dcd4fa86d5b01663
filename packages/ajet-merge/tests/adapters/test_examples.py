"""The examples of docs/merge/adapters.md run, and print what they say."""

import re
from pathlib import Path

import pytest

PAGE = Path("docs", "merge", "adapters.md")
STACKS = {"verl": "verl", "trl": "trl", "slime": "numpy", "tinker": "tinker", "datasets": "datasets", "padded": "numpy"}


def examples() -> dict[str, str]:
    """The code blocks of the page by the name in their first line."""
    page = next((folder / PAGE for folder in Path(__file__).parents if (folder / PAGE).exists()), None)
    if page is None:
        pytest.skip("the documentation is not part of this installation")
    return dict(re.findall(r"```python\n# (\w+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL))


def test_every_stack_has_an_example() -> None:
    assert examples().keys() == {"all", *STACKS}


@pytest.mark.parametrize("stack", STACKS)
def test_an_example_runs(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(STACKS[stack], reason=f"{STACKS[stack]} is not installed")
    blocks = examples()
    exec(blocks["all"] + blocks[stack], {"__name__": "example"})
    said = re.findall(r"print\(.*\)\s+# (\[.*\])\n", blocks[stack])
    assert capsys.readouterr().out.splitlines()[: len(said)] == said
