"""What commands print: text for people on stdout, one JSON line for programs with `--json`, errors on stderr."""

import json
import logging
import sys
from typing import Any, NoReturn

import click

from ajet_core.errors import AjetError, to_wire

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON line for programs.")


def show(data: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Prints `data` as one JSON line, or `text`."""
    click.echo(json.dumps(data) if as_json else printable(text))


def fail(error: AjetError, *, as_json: bool) -> NoReturn:
    """Prints an error and ends with exit code 1."""
    click.echo(json.dumps(to_wire(error)) if as_json else printable(f"error: {error.message}"), err=True)
    sys.exit(1)


def printable(text: str) -> str:
    """The text without characters that would move a terminal's cursor or colour what follows; lines stay lines."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


class OneLine(logging.Formatter):
    """Formats what is logged as one line, whatever names it quotes; only a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """Returns the line."""
        line = super().formatMessage(record)
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
