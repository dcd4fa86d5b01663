"""Our server in front of `worker.py`, as `ajet server start` runs it."""

import argparse
import sys
from pathlib import Path

from texts import MAX_MODEL_LEN, MODEL

from ajet_core.config import Job
from ajet_server.app import serve
from ajet_server.settings import ServerSettings

_EPISODES = 4096


def make_job(folder: Path) -> Job:
    """Train episodes that no update ever takes, with room for the longest conversation."""
    return Job.model_validate(
        {
            "model": {"path": str(folder), "served_name": MODEL},
            "batch": {"policy": "episodes", "size": _EPISODES, "max_pool_episodes": _EPISODES},
            "limits": {"max_open_episodes": _EPISODES, "lease_s": 3600.0},
            "trainer": {"pack_tokens": MAX_MODEL_LEN},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    arguments = parser.parse_args()
    settings = ServerSettings("127.0.0.1", 0, arguments.data, make_job(arguments.folder))
    worker = (sys.executable, str(Path(__file__).with_name("worker.py")), str(arguments.folder))
    serve(settings, lambda url: print(url, flush=True), worker)


if __name__ == "__main__":
    main()
