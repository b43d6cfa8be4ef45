"""What is asked of an engine: prompts, lengths and conversations, drawn from seeds."""

from harness.workloads.multi_turn import MultiTurn
from harness.workloads.shared_prefix import SharedPrefix
from harness.workloads.trace import TraceReplay

# Every workload that a sweep file may ask for: `kind` → class. A new one is a file and a line here.
WORKLOADS: dict[str, type[SharedPrefix] | type[MultiTurn] | type[TraceReplay]] = {
    "shared-prefix": SharedPrefix,
    "multi-turn": MultiTurn,
    "trace": TraceReplay,
}
