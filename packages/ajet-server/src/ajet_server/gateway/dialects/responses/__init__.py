"""The Responses dialect (`POST /v1/responses`), whole and streamed.

An answer is a list of items: its thinking, its message, its tool calls. Sent back as they are, or named by
`previous_response_id`, they are the one assistant message that Chat Completions would have sent back, so a conversation
has the same prompts in both dialects.
"""

from ajet_server.gateway.dialects.responses.answer import answer
from ajet_server.gateway.dialects.responses.body import RequestBody
from ajet_server.gateway.dialects.responses.events import events, failure
from ajet_server.gateway.dialects.responses.parse import Parsed, parse

__all__ = ["NAMES", "Parsed", "RequestBody", "answer", "events", "failure", "parse"]

NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""What this dialect calls fields that have another name elsewhere."""
