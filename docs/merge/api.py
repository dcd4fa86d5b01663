"""Writes `api.md` from the docstrings of ajet-merge, with griffe2md: one section for each public name.

    uv run python docs/merge/api.py

Reads the sources; nothing is imported and no package but griffe2md is needed.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from griffe import GriffeLoader, Parser  # pyright: ignore[reportMissingImports]
from griffe2md import render_object_docs  # pyright: ignore[reportMissingImports]

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parents[1] / "packages" / "ajet-merge" / "src"
MODULES: dict[str, tuple[str, ...]] = {
    "ajet_merge": (),  # all of `__all__`
    "ajet_merge.weights": ("fixed_length_mean", "unit_mean"),
    "ajet_merge.records": (),
    "ajet_merge.messages": ("canonical_message", "canonical_tools"),
    "ajet_merge.explain": ("Tokenizer",),
    "ajet_merge.adapters.rows": ("trained_rows", "Row"),
    "ajet_merge.adapters.padded": ("to_padded", "PaddedRows"),
    "ajet_merge.adapters.verl": ("to_dataproto",),
    "ajet_merge.adapters.trl": ("to_grpo_batch", "to_rollout"),
    "ajet_merge.adapters.slime": ("to_samples", "to_sample_dicts"),
    "ajet_merge.adapters.tinker": ("to_datums",),
    "ajet_merge.adapters.datasets": ("to_dataset",),
}
"""The sections of the page, and the names in them. A name stands where it first occurs."""

CONFIG: dict[str, Any] = {
    "heading_level": 3,
    "show_root_full_path": False,
    "show_root_members_full_path": False,
    "show_object_full_path": False,
    "show_if_no_docstring": False,
    "show_signature_annotations": True,
    "line_length": 100,
    "inherited_members": False,
    "summary": False,
    "members_order": "source",
}
DOCSTRINGS = {"ignore_init_summary": True, "warn_unknown_params": False}
HEAD = """<!-- Written by docs/merge/api.py from the docstrings. -->

# API of ajet-merge

Every public name, by module. Shapes are in brackets: i32[N] is an int32 array of N entries, f32 float32, u8 uint8.
Where no signature is shown, a class is a dataclass of its attributes, in their order.
"""


def main() -> None:
    package = load()
    sections, contents, seen = list[str](), list[str](), set[str]()
    for name, wanted in MODULES.items():
        module = package if name == "ajet_merge" else package[name.removeprefix("ajet_merge.")]
        found = [item for item in public(module, wanted) if item.path not in seen]
        seen |= {item.path for item in found}
        links = " · ".join(f"[`{item.name}`](#{name}.{item.name})" for item in found)
        contents.append(f"- [`{name}`](#{name.replace('.', '')}): {links}")
        about = "" if name == "ajet_merge" else clean(module.docstring.value)
        sections += [f"## `{name}`\n\n{about}", *(section(name, item) for item in found)]
    page = "\n".join([HEAD, *contents, "", *(f"{text.strip()}\n" for text in sections)])
    (FOLDER / "api.md").write_text(page, encoding="utf-8")


def load() -> Any:
    loader = GriffeLoader(
        search_paths=[SOURCES], docstring_parser=Parser.google, docstring_options=DOCSTRINGS, allow_inspection=False
    )
    package = loader.load("ajet_merge")
    loader.resolve_aliases()
    return package


def public(module: Any, wanted: Sequence[str]) -> Iterator[Any]:
    """The classes and functions of these names; of `__all__` if there are none."""
    for name in wanted or module.exports:
        item = module[str(name)]
        item = item.final_target if item.is_alias else item
        if item.is_class or item.is_function:
            yield item


def section(module: str, item: Any) -> str:
    text = clean(render_object_docs(item, CONFIG))
    if "dataclass" in item.labels and not item.members["__init__"].lineno:  # the attributes say it all
        text = re.sub(r"```python\n.*?```\n\n", "", text, count=1, flags=re.DOTALL)
    return f'<a id="{module}.{item.name}"></a>\n\n{text}'


def clean(text: str) -> str:
    """Without links to names that the page has no anchors for, and with one blank line at most."""
    text = re.sub(r"\[([^\[\]]*)\]\(#[^)]*\)", r"\1", text)
    text = re.sub(r"<code>(.*?)</code>", lambda found: f"`{found[1]}`", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    main()
