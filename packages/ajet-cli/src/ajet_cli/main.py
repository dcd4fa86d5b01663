"""`ajet`: the command group. Each command lives in its own module and is imported when it is used."""

import importlib
import sys

import click

from ajet_cli import __version__
from ajet_cli.output import fail
from ajet_core.errors import AjetError

_COMMANDS = {
    "episodes": ("ajet_cli.commands.episodes.group", "episodes"),
    "job": ("ajet_cli.commands.job", "job"),
    "ledger": ("ajet_cli.commands.ledger", "ledger"),
    "merge": ("ajet_cli.commands.merge.group", "merge"),
    "policy": ("ajet_cli.commands.policy", "policy"),
    "quickstart": ("ajet_cli.commands.quickstart", "quickstart"),
    "run": ("ajet_cli.commands.run", "run"),
    "server": ("ajet_cli.commands.server", "server"),
    "status": ("ajet_cli.commands.server", "status"),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{name} is not a click command")
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ajet")
def cli() -> None:
    """Train language-model agents while they stay where they are."""


def main() -> None:
    """Entry point. Every error of ours becomes one sentence and exit code 1, never a traceback."""
    try:
        cli.main(prog_name="ajet")
    except AjetError as error:
        fail(error, as_json="--json" in sys.argv)
