"""The client certificate of a run: measurements of the client, limits and verdict."""

from harness.results.client.certificate import (
    DEGRADED,
    INVALID,
    WORST_FIRST,
    certify,
    uncertified,
)
from harness.results.client.error import error_of_pairs
from harness.results.client.limits import LIMITS, amount
from harness.results.client.metrics import (
    cap_waits_ns,
    conversation_spans,
    start_rates,
    started_words,
)

__all__ = [
    "DEGRADED",
    "INVALID",
    "LIMITS",
    "WORST_FIRST",
    "amount",
    "cap_waits_ns",
    "certify",
    "conversation_spans",
    "error_of_pairs",
    "start_rates",
    "started_words",
    "uncertified",
]
