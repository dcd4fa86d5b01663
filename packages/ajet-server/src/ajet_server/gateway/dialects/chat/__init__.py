"""The Chat Completions dialect: what is understood is listed here, everything else is refused by name.

Beyond OpenAI's API: `top_k`; `return_token_ids`, which adds `prompt_token_ids` and `token_ids` as vLLM names them, and
`weight_versions`, [first token, version] of each run of tokens of one version; and `reasoning_content` of assistants'
messages, in and out, as DeepSeek and vLLM name it (`reasoning` is read as well).
"""

from ajet_server.gateway.dialects.chat.answer import answer
from ajet_server.gateway.dialects.chat.options import Parsed
from ajet_server.gateway.dialects.chat.parse import RequestBody, parse
from ajet_server.gateway.dialects.chat.stream import events, failure

__all__ = ["NAMES", "Parsed", "RequestBody", "answer", "events", "failure", "parse"]

NAMES: dict[str, str] = {}
"""Every field has its own name: it is from this dialect that the others differ."""
