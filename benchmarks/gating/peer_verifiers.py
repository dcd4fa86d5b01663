# /// script
# requires-python = ">=3.11"
# dependencies = ["verifiers==0.4.0"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
# pyright: reportMissingImports=false
"""verifiers' interception server, a session for each client, twice.

`verifiers`: with its client for training, which renders prompts to token ids and captures ids and log-probabilities.
`verifiers_relay`: with its client for evaluation, which forwards the request and keeps messages only.
"""

import asyncio
from typing import Any

from serving import read_arguments, ready

channel, arguments = read_arguments()

from verifiers.v1.clients import ModelContext  # noqa: E402
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig  # noqa: E402
from verifiers.v1.interception import InterceptionServer  # noqa: E402
from verifiers.v1.session import RolloutSession  # noqa: E402
from verifiers.v1.trace import Trace  # noqa: E402
from verifiers.v1.types import Sampling  # noqa: E402


async def _start(client: Any) -> tuple[int, list[tuple[str, str]]]:
    server = InterceptionServer()
    await server.start()
    clients: list[tuple[str, str]] = []
    for _ in range(arguments.clients):
        context = ModelContext(arguments.model, client, Sampling(temperature=1.0, max_tokens=64))
        # Without validation: which build, task and agent it was is recorded only.
        trace = Trace.model_construct(task=None, agent=None, verifiers=None)
        secret, _ = server.register(RolloutSession(ctx=context, trace=trace))
        clients.append(("/v1/chat/completions", secret))
    return server.port, clients


async def main() -> None:
    endpoint = {"base_url": f"{arguments.engine}/v1", "api_key_var": "NO_KEY_IS_NEEDED"}
    train = TrainClientConfig(**endpoint, renderer_model_name=arguments.folder)
    started = {"verifiers": await _start(train), "verifiers_relay": await _start(EvalClientConfig(**endpoint))}
    ready(channel, started)
    await asyncio.Event().wait()


asyncio.run(main())
