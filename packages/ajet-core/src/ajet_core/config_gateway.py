"""The `gateway` section: how conversations are put to the model, and how its answers are read."""

from typing import Literal

from ajet_core.config_section import Section

ToolFormatName = Literal[
    "auto", "hermes", "llama3", "mistral", "mistral_args", "qwen3_coder", "deepseek_v3", "deepseek_v31", "phi4", "none"
]
ReasoningFormatName = Literal["auto", "think", "mistral", "none"]


class GatewayConfig(Section):
    """Between agents and the model: tool calls, thinking, history."""

    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls. `auto`: as its chat template writes them; where the template knows no tools,
    they are explained in the system message, in the syntax of `hermes`. `none`: requests with tools are refused."""
    reasoning_format: ReasoningFormatName = "auto"
    """How the model marks its thinking. `think`: <think>...</think>. `mistral`: [THINK]...[/THINK]. `none`: not at all,
    so that everything is text. `auto`: as its chat template or its vocabulary says."""
    history: Literal["template", "keep"] = "template"
    """Where the chat template would change what an earlier call was shown (drop its thinking, say): `template` follows
    it and begins a new branch there; `keep` goes on from the tokens that the model saw and sampled."""
