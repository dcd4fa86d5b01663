"""Writes a job as commented YAML: each field with its docstring and its default."""

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ajet_core.config import Job
from ajet_core.config_errors import section_at

_WIDTH = 100


def job_template(model_path: str) -> str:
    """Returns a whole job for the model at `model_path`; what may be left out is commented out."""
    lines = ["# An ajet job. Check it with: ajet job validate <this file>", ""]
    lines += _section((), {("model", "path"): model_path})
    return "\n".join(lines) + "\n"


def _section(path: tuple[str, ...], given: dict[tuple[str, ...], Any]) -> Iterator[str]:
    section = section_at(path)
    if section is None:
        raise ValueError(f"the job has no section {'.'.join(path)}")
    indent = "  " * len(path)
    for name, field in section.model_fields.items():
        here = (*path, name)
        yield from _comment(field.description or _first_line(here), indent)
        if section_at(here) is not None:
            title, body = f"{indent}{name}:", list(_section(here, given))
            # A section without a value in it would be no section but null.
            left_out = _is_optional(field) or all(line.lstrip().startswith("#") for line in body)
            yield from (map(_commented_out, [title, *body]) if left_out else [title, *body])
        else:
            yield from _entry(name, given.get(here, field.default), indent)
        if not path:
            yield ""


def _commented_out(line: str) -> str:
    """A line of a section that may be left out. Its comments keep one `#` more, so that taking one away restores it."""
    return f"# {line}"


def _entry(name: str, value: Any, indent: str) -> Iterator[str]:
    if value is None or value is PydanticUndefined:
        yield f"{indent}# {name}:"
    else:
        yield f"{indent}{name}: {yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(" ".join(text.split()), _WIDTH - len(indent)):
        yield f"{indent}# {line}"


def _first_line(path: tuple[str, ...]) -> str:
    section = section_at(path)
    return (section.__doc__ or "").strip().splitlines()[0] if section else ""


def _is_optional(field: FieldInfo) -> bool:
    return field.default is None


def describe(job: Job) -> str:
    """Returns the job as YAML with every default filled in."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False)
