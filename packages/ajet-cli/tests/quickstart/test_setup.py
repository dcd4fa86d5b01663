from pathlib import Path
from typing import get_args

import pytest
import yaml
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_cli.quickstart.setup import Sharing, prepare
from ajet_core.config import Job, TrainerConfig


@pytest.mark.parametrize("sharing", get_args(Sharing))
def test_the_job_is_valid_and_shares_what_was_asked_for(tmp_path: Path, sharing: Sharing) -> None:
    plan = prepare(tmp_path, None, tiny=True, updates=2, seed=3, sharing=sharing, log=print)
    job = Job.model_validate(yaml.safe_load((plan.folder / "job.yaml").read_text("utf-8")))
    assert (job.trainer.sharing, job.seed, job.method) == (sharing, 3, "full")


def test_all_that_the_trainer_can_share_can_be_asked_for() -> None:
    assert get_args(Sharing) == get_args(TrainerConfig.model_fields["sharing"].annotation)


def test_any_other_sharing_is_refused() -> None:
    result = CliRunner().invoke(cli, ["quickstart", "--tiny", "--sharing", "words"])
    assert result.exit_code == 2
    assert "'words' is not one of 'auto', 'forest', 'rows', 'calls'" in result.output
