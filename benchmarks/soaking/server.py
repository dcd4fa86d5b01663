"""Our server in front of `worker.py`, as `ajet server start` runs it."""

import argparse
import sys
from pathlib import Path

from ajet_core.config import Job
from ajet_server.app import serve
from ajet_server.settings import ServerSettings


def make_job(folder: Path, most_open: int) -> Job:
    """As many episodes a batch as may be open: the pool fills, drains and is trained again and again."""
    return Job.model_validate(
        {
            "model": {"path": str(folder), "served_name": "instant"},
            "batch": {"policy": "episodes", "size": most_open},
            "limits": {"max_open_episodes": most_open},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("most_open", type=int)
    arguments = parser.parse_args()
    settings = ServerSettings("127.0.0.1", 0, arguments.data, make_job(arguments.folder, arguments.most_open))
    worker = (sys.executable, str(Path(__file__).with_name("worker.py")), str(arguments.folder))
    serve(settings, lambda url: print(url, flush=True), worker)


if __name__ == "__main__":
    main()
