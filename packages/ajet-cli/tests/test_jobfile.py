from pathlib import Path

import pytest

from ajet_cli.jobfile import is_given, load_job
from ajet_cli.jobtemplate import describe, job_template
from ajet_core.config import Job
from ajet_core.errors import ConfigError


def _file(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text, "utf-8")
    return file


def test_later_sources_win(tmp_path: Path) -> None:
    file = _file(tmp_path, "model: {path: m}\noptimizer: {learning_rate: 1e-4, beta1: 0.8}\n")
    environ = {"AJET_JOB__OPTIMIZER__LEARNING_RATE": "2e-4", "AJET_JOB__BATCH__SIZE": "5", "UNRELATED": "x"}
    job = load_job(file, ["optimizer.learning_rate=3e-4"], environ)
    assert (job.optimizer.learning_rate, job.optimizer.beta1, job.batch.size) == (3e-4, 0.8, 5)
    assert load_job(file, [], environ).optimizer.learning_rate == 2e-4
    assert load_job(file, [], {}).optimizer.learning_rate == 1e-4


def test_no_file_is_needed() -> None:
    assert load_job(None, ["model.path=m", "lora={rank: 4}"], {}).adapter == Job.model_validate(
        {"model": {"path": "m"}, "lora": {"rank": 4}}
    ).adapter  # fmt: skip


@pytest.mark.parametrize(
    ("text", "overrides", "environ", "said"),
    [
        ("model: {path: m}\nsedd: 1", [], {}, "sedd: unknown field; did you mean seed?"),
        ("[1, 2]", [], {}, "must hold a mapping"),
        ("a: [", [], {}, "not valid YAML"),
        ("model: {path: m}", ["seed"], {}, "'seed' is no override; write key=value"),
        ("model: {path: m}", ["=3"], {}, "is no override"),
        ("model: {path: m}", ["seed=1", "seed.deep=3"], {}, "seed is 1, not a section"),
        ("model: {path: m}\nseed: 4", ["seed.deep=3"], {}, "seed is 4, not a section"),
        ("model: {path: m}", [], {"AJET_JOB__BATCH__SIZ": "3"}, "batch.siz: unknown field; did you mean size?"),
        ("model: {path: m}", ["seed=["], {}, "not valid YAML"),
    ],
)
def test_mistakes_name_their_source(
    tmp_path: Path, text: str, overrides: list[str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_job(_file(tmp_path, text), overrides, environ)
    assert said in refusal.value.message


def test_nothing_in_yaml_is_executed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_job(_file(tmp_path, "model: !!python/object/apply:os.system ['true']"), [], {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        load_job(tmp_path / "none.yaml", [], {})


def test_the_template_is_a_valid_job_with_every_default(tmp_path: Path) -> None:
    text = job_template("some/model")
    job = load_job(_file(tmp_path, text), [], {})
    assert job == Job.model_validate({"model": {"path": "some/model"}})
    for section in ("optimizer:", "batch:", "limits:", "engine:", "# lora:"):
        assert f"\n{section}" in text
    assert all(len(line) <= 110 for line in text.splitlines())


def test_a_described_job_reads_back(tmp_path: Path) -> None:
    job = Job.model_validate({"model": {"path": "m"}, "lora": {"rank": 3}})
    assert load_job(_file(tmp_path, describe(job)), [], {}) == job


def test_environment_and_overrides_are_laid_over_a_stored_job(tmp_path: Path) -> None:
    stored = Job.model_validate({"model": {"path": "m"}, "optimizer": {"learning_rate": 1e-4, "beta1": 0.8}})
    job = load_job(None, ["optimizer.learning_rate=3e-4"], {"AJET_JOB__BATCH__SIZE": "5"}, stored)
    assert (job.optimizer.learning_rate, job.optimizer.beta1, job.batch.size) == (3e-4, 0.8, 5)
    assert load_job(_file(tmp_path, "model: {path: other}"), [], {}, stored).optimizer.beta1 == 0.9


def test_what_counts_as_given() -> None:
    assert not is_given(None, [], {"AJET_TOKEN": "x"})
    assert is_given(None, [], {"AJET_JOB__SEED": "1"})
    assert is_given(None, ["seed=1"], {})
    assert is_given(Path("job.yaml"), [], {})
