"""Event streams: bytes in, tokens and usage out. Pure functions."""

from harness.client.stream.answer import Answer, read_answer, refusal_text, shown

__all__ = [
    "Answer",
    "read_answer",
    "refusal_text",
    "shown",
]
