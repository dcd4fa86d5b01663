"""The Messages dialect, Anthropic's: what is not served is refused by name.

Beyond the API: `return_token_ids`, which adds `prompt_token_ids`, `token_ids` and `weight_versions` to the message;
`seed`; and `temperature`, `top_p` and `top_k`, which Anthropic's newest models and SDKs no longer have.
"""

from ajet_server.gateway.dialects.messages.answer import answer, count
from ajet_server.gateway.dialects.messages.body import CountBody, Parsed, RequestBody, parse, parse_count
from ajet_server.gateway.dialects.messages.errors import error_body
from ajet_server.gateway.dialects.messages.events import events, failure

__all__ = [
    "NAMES",
    "CountBody",
    "Parsed",
    "RequestBody",
    "answer",
    "count",
    "error_body",
    "events",
    "failure",
    "parse",
    "parse_count",
]

NAMES = {"response_format": "output_config.format"}
"""What this dialect calls fields that have another name elsewhere."""
