# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm[proxy]==1.108.7"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
# pyright: reportMissingImports=false
"""LiteLLM's proxy with one worker, a master key and no database: it forwards and keeps nothing."""

import json
import os
import sys
import tempfile
from typing import Any

from serving import free_port, read_arguments, ready

channel, arguments = read_arguments()
os.environ |= {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}

from litellm.proxy.proxy_cli import run_server  # noqa: E402

_KEY = "sk-benchmark"
model: dict[str, Any] = {
    "model_name": arguments.model,
    "litellm_params": {
        "model": f"openai/{arguments.model}",
        "api_base": f"{arguments.engine}/v1",
        "api_key": "none",
    },
}
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
    json.dump({"model_list": [model], "general_settings": {"master_key": _KEY}}, config)  # JSON is YAML
    config.flush()
    port = free_port()
    ready(channel, {"litellm": (port, [("/v1/chat/completions", _KEY)] * arguments.clients)})
    sys.argv = ["litellm", "--config", config.name, "--host", "127.0.0.1", "--port", str(port)]
    sys.argv += ["--keepalive_timeout", "600"]  # by default 5 s: it would close connections that wait for their turn
    run_server()
