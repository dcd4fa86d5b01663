"""A job from three sources; a later one wins: the YAML file, the environment, `key=value` overrides.

job.yaml                       optimizer: {learning_rate: 1e-4}
environment                    AJET_JOB__OPTIMIZER__LEARNING_RATE=2e-4
overrides                      optimizer.learning_rate=5e-4
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ajet_core.config import Job
from ajet_core.config_errors import config_error
from ajet_core.errors import ConfigError

ENV_PREFIX = "AJET_JOB__"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `1e-4` as text, since it wants a dot; people who set learning rates mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def is_given(file: Path | None, overrides: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Whether any of the three sources says anything."""
    return file is not None or any(overrides) or any(name.startswith(ENV_PREFIX) for name in environ)


def load_job(file: Path | None, overrides: Iterable[str], environ: Mapping[str, str], stored: Job | None = None) -> Job:
    """Reads and checks a job.

    Args:
        file: YAML; without one, `stored` is what environment and overrides are laid over.
        stored: the job of a data folder that is gone on with.

    Raises:
        ConfigError: names the file or the source, the field, the value and what would be right.
    """
    data = _read(file) if file else stored.model_dump(mode="json", exclude_unset=True) if stored else {}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = name.removeprefix(ENV_PREFIX).lower().split("__")
            _set(data, path, _value(environ[name], name), name)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is no override; write key=value, as in optimizer.learning_rate=5e-4")
        _set(data, key.split("."), _value(text, key), override)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        raise config_error(error) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the job file {file} cannot be read: {error}") from error
    data = _value(text, str(file))
    if not isinstance(data, dict):
        raise ConfigError(f"the job file {file} must hold a mapping of fields, not {type(data).__name__}")
    return data


def _value(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with one more number format
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error


def _set(data: dict[str, Any], path: list[str], value: Any, source: str) -> None:
    node = data
    for name in path[:-1]:
        child = node.setdefault(name, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {name} is {child!r}, not a section that has fields", field=".".join(path))
        node = child
    node[path[-1]] = value
