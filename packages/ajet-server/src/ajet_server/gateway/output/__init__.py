"""Text, thinking and tool calls out of sampled token ids.

    ids -> `tokens` (bytes, whole characters) -> `stops` -> `parser` (thinking, text, calls by `formats` and `calls`)

`reader` joins them for one completion, `format` is what is known of a model, `detect` finds it out from the template.
"""

from ajet_server.gateway.output.format import OutputFormat
from ajet_server.gateway.output.reader import OutputReader, Piece, Summary

__all__ = ["OutputFormat", "OutputReader", "Piece", "Summary"]
