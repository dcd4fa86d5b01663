"""What commands print: text for people on stdout, one JSON line for programs with `--json`, errors on stderr."""

import json
import sys
from typing import Any, NoReturn

import click

from ajet_core.errors import AjetError, to_wire

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON line for programs.")


def show(data: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Prints `data` as one JSON line, or `text`."""
    click.echo(json.dumps(data) if as_json else text)


def fail(error: AjetError, *, as_json: bool) -> NoReturn:
    """Prints an error and ends with exit code 1."""
    click.echo(json.dumps(to_wire(error)) if as_json else f"error: {error.message}", err=True)
    sys.exit(1)
