"""A server under more load than it likes: nothing fails, and nothing grows."""

import subprocess
import sys
from pathlib import Path

import pytest

from live_server import last_json

_SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.mark.timeout(200)
def test_a_server_stays_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, str(_SOAK), "--episodes", "300", "--concurrent", "64", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = last_json(done.stdout)
    assert result["failures"] == {}
    assert result["most_open"] == 64
    assert result["growth_after_warm_up"] < 0.1
    files = [reading["files"] for reading in result["readings"]]
    assert max(files) <= files[0] + 64 + 16, "a connection each, and a few of its own"
