# /// script
# requires-python = ">=3.12"
# dependencies = ["agentlightning==1.0.2"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
# pyright: reportMissingImports=false
"""Agent Lightning's gateway, a rollout for each client.

It asks the engine for token ids and log-probabilities, and keeps requests and answers whole in memory.
"""

import asyncio
import logging

from serving import free_port, read_arguments, ready

channel, arguments = read_arguments()

import structlog  # noqa: E402
import uvicorn  # noqa: E402
from agentlightning.schemas import Model, RolloutCreate  # noqa: E402
from agentlightning.server.app import create_app  # noqa: E402
from agentlightning.server.routes.models import register_models  # noqa: E402
from agentlightning.server.routes.rollouts import enqueue_rollouts  # noqa: E402

proxy = {"model_name": arguments.model, "train": {"temperature": 1.0}, "val": {"temperature": 1.0}}
names = [f"rollout{place}" for place in range(arguments.clients)]
asyncio.run(register_models([Model(model=arguments.model, endpoint=f"{arguments.engine}/v1")]))
asyncio.run(enqueue_rollouts([RolloutCreate(input=name, rollout_id=name) for name in names]))
paths = [f"/proxy/rollout/{name}/attempt/0/mode/train/openai/v1/chat/completions" for name in names]
port = free_port()
ready(channel, {"agentlightning": (port, [(path, "none") for path in paths])})
# As its own entry point does, but without writing a line for every request.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
app = create_app({"key": "", "default_proxy": proxy})
uvicorn.run(app, host="127.0.0.1", port=port, workers=1, timeout_keep_alive=120, access_log=False)
