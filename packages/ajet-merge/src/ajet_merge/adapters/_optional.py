"""Packages that are needed for one adapter only."""

from importlib import import_module
from typing import Any

from ajet_merge.errors import MergeError


def optional(module: str, install: str) -> Any:
    """Import a module that an adapter needs.

    Raises:
        MergeError: it, or something it imports, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MergeError(f"this adapter needs {module} ({error}): {install}") from error
