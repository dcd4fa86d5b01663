"""Turns pydantic's report into one sentence per mistake: the field, the value, what would be right."""

import difflib
from typing import Any

from pydantic import BaseModel, ValidationError

from ajet_core.config import Job
from ajet_core.errors import ConfigError

_CONTRADICTION = "value_error"


def config_error(error: ValidationError) -> ConfigError:
    """Returns a `ConfigError` whose message has one line per mistake and whose `field` is the first to blame."""
    lines = [_describe(item) for item in error.errors(include_url=False)]
    first = lines[0].split(":", 1)[0]
    return ConfigError("\n".join(lines), field=first)


def _describe(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == _CONTRADICTION and not path:
        return str(item["ctx"]["error"])
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown field{_suggest(item['loc'])}"
    if item["type"] == "missing":
        return f"{path}: required, but not given"
    return f"{path}: got {item['input']!r}; {item['msg'][:1].lower()}{item['msg'][1:]}"


def _suggest(loc: tuple[str | int, ...]) -> str:
    section = section_at(tuple(str(part) for part in loc[:-1]))
    if section is None:
        return ""
    known = list(section.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def section_at(path: tuple[str, ...]) -> type[BaseModel] | None:
    """Returns the section class of `Job` at a dotted path (the empty path is `Job` itself), None if there is none."""
    section: type[BaseModel] = Job
    for name in path:
        field = section.model_fields.get(name)
        found = _classes(field.annotation) if field else []
        if not found:
            return None
        section = found[0]
    return section


def _classes(annotation: Any) -> list[type[BaseModel]]:
    options = getattr(annotation, "__args__", (annotation,))
    return [kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel)]
