"""Event streams: bytes in, tokens and usage out. Pure functions."""

from harness.client.stream.response import ParsedResponse, parse_response, refusal_text, shown

__all__ = [
    "ParsedResponse",
    "parse_response",
    "refusal_text",
    "shown",
]
