"""Workloads: the prompts, lengths and conversations that an engine receives."""

from harness.workloads.base import (
    Conversation,
    Drawn,
    Segment,
    TokenIds,
    Turn,
    Workload,
    WorkloadError,
)
from harness.workloads.lengths import Empirical, Fixed, Lengths, Lognormal, Uniform
from harness.workloads.multi_turn import MultiTurn
from harness.workloads.seeds import text_names
from harness.workloads.shared_prefix import SharedPrefix
from harness.workloads.trace import TraceReplay

__all__ = [
    "WORKLOADS",
    "Conversation",
    "Drawn",
    "Empirical",
    "Fixed",
    "Lengths",
    "Lognormal",
    "MultiTurn",
    "Segment",
    "SharedPrefix",
    "TokenIds",
    "Turn",
    "Uniform",
    "Workload",
    "WorkloadError",
    "text_names",
]

# `kind` in a sweep file → class. To add a workload, add its file and one line here.
WORKLOADS: dict[str, type[SharedPrefix] | type[MultiTurn] | type[TraceReplay]] = {
    "shared-prefix": SharedPrefix,
    "multi-turn": MultiTurn,
    "trace": TraceReplay,
}
