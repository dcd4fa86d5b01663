"""`ajet quickstart --tiny`, as a user runs it, and what it leaves behind."""

from pathlib import Path

import pytest

from live_server import last_json, run_cli

pytestmark = pytest.mark.timeout(300)


def test_quickstart_tiny_ends_with_its_json_line(tmp_path: Path) -> None:
    result = run_cli("quickstart", "--tiny", "--updates", "2", "--seed", "3", "--json", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    line = last_json(result.stdout)
    assert len(result.stdout.strip().splitlines()) == 1
    assert line["updates"] == 2
    assert len(line["rewards"]) == 3
    assert all(0 <= reward <= 1 for reward in line["rewards"])
    assert 0 < line["tokens_forest"] < line["tokens_unmerged"]
    assert line["seconds"] > 0
    assert Path(line["plot"]).stat().st_size > 1000
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(line["adapter"], local_files_only=True)
