"""`ajet job`: write and check job files."""

import os
from pathlib import Path

import click

from ajet_cli.jobfile import load_job
from ajet_cli.jobtemplate import describe, job_template
from ajet_cli.output import json_option, show
from ajet_core.errors import ConfigError


@click.group()
def job() -> None:
    """Write and check job files."""


@job.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("job.yaml"))
@click.option("--model", default="path/to/model", help="Model folder to put into the file.")
@json_option
def init(file: Path, model: str, as_json: bool) -> None:
    """Write FILE (job.yaml) with every field, its default and what it means."""
    try:
        with file.open("x", encoding="utf-8") as handle:
            handle.write(job_template(model))
    except FileExistsError:
        raise ConfigError(f"{file} exists already; it was not changed") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
    show({"file": str(file)}, f"wrote {file}; check it with: ajet job validate {file}", as_json=as_json)


@job.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@json_option
def validate(file: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check FILE with the environment's AJET_JOB__… and key=value OVERRIDES; print the whole job."""
    found = load_job(file, overrides, os.environ)
    _check_model(found.model.path)
    show({"valid": True, "job": found.model_dump(mode="json")}, f"valid\n\n{describe(found)}", as_json=as_json)


def _check_model(path: str) -> None:
    """Checks the model folder too where the server package, which knows how, is installed."""
    try:
        from ajet_server.models.folder import open_model_folder
    except ModuleNotFoundError:
        return
    open_model_folder(path)
