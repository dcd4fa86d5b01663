"""The agents: one small program for each framework, and what each is known to change of the messages.

Those that no package of the workspace brings run only where `.ci/conformance` has installed them. It says where:

    AJET_CONFORMANCE_PYTHON    the interpreter whose environment has the Python frameworks
    AJET_CONFORMANCE_NODE      the `node_modules` folder that has `openai`
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ajet_client import Episode

_AGENTS = Path(__file__).parent / "agents"
TASK: dict[str, Any] = json.loads((_AGENTS / "task.json").read_text("utf-8"))
_AGENT_S = 200.0
_PYTHON = os.environ.get("AJET_CONFORMANCE_PYTHON")
_NODE = os.environ.get("AJET_CONFORMANCE_NODE")


@dataclass(frozen=True)
class Framework:
    """One way to run the agent.

    Attributes:
        script: in `agents`.
        how: its further arguments.
        needs: who has it: the workspace, or an environment of `.ci/conformance`.
        changes: `role.field` of messages that it is known to add to what was said.
    """

    script: str
    how: tuple[str, ...] = ()
    needs: Literal["workspace", "python", "node"] = "workspace"
    changes: frozenset[str] = frozenset()

    @property
    def is_here(self) -> bool:
        return {"workspace": True, "python": bool(_PYTHON), "node": bool(_NODE)}[self.needs]

    def run(self, episode: Episode) -> dict[str, Any]:
        """Runs the agent as a process of its own and returns what it saw (`agents/task.py`, `Seen`)."""
        program = "node" if self.needs == "node" else _PYTHON or sys.executable
        done = subprocess.run(
            [program, str(_AGENTS / self.script), episode.base_url, episode.api_key, episode.model, *self.how],
            capture_output=True,
            text=True,
            check=False,
            timeout=_AGENT_S,
            env={**os.environ, "NODE_PATH": _NODE or ""},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


_NAMES = frozenset({"system.name", "user.name", "assistant.name", "tool.name"})
_WAYS = ("sync", "stream", "async", "async-stream")
FRAMEWORKS: dict[str, Framework] = {
    "raw HTTP": Framework("raw_http.py"),
    **{f"openai {way}": Framework("openai_sdk.py", (way,)) for way in _WAYS},
    **{f"anthropic {way}": Framework("anthropic_sdk.py", (way,)) for way in _WAYS},
    "LangChain": Framework("langchain_agent.py", needs="python"),
    "LangGraph": Framework("langgraph_agent.py", needs="python"),
    "AgentScope": Framework("agentscope_agent.py", needs="python", changes=_NAMES),
    "AutoGen": Framework("autogen_agent.py", needs="python", changes=frozenset({"user.name"})),
    "AG2": Framework("ag2_agent.py", needs="python"),
    "LiteLLM": Framework("litellm_agent.py", needs="python"),
    "pydantic-ai": Framework("pydantic_ai_agent.py", needs="python"),
    "openai Node": Framework("openai_node.mjs", ("whole",), needs="node"),
    "openai Node stream": Framework("openai_node.mjs", ("stream",), needs="node"),
}
REFERENCE = "raw HTTP"
"""What the others are compared with."""
