"""`harness capacity`: what some GPUs hold of a model and how fast they may be. Starts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from harness.adapters import BASELINE, EngineError, EngineSettings, ToggleValue
from harness.adapters.embedded import Capacity
from harness.adapters.embedded import capacity_of as facts_of
from harness.commands.capacity_text import capacity_lines
from harness.output import printing


def capacity(arguments: argparse.Namespace) -> int:
    """Print what fits and the floors; return 0, also for a model that does not fit."""
    found = _found(arguments)
    with printing():
        if arguments.json:
            text = json.dumps({"simulated": True, **asdict(found)}, indent=1, allow_nan=False)
        else:
            text = "\n".join(capacity_lines(found))
        sys.stdout.write(f"{text}\n")
    return 0


def _found(arguments: argparse.Namespace) -> Capacity:
    """Return the facts; errors name the option and not the setting behind it."""
    count = arguments.count
    sharing = count if arguments.tensor_parallel is None else arguments.tensor_parallel
    settings = EngineSettings(
        model=arguments.model,
        gpu=arguments.gpu,
        gpu_count=count,
        max_model_len=arguments.context,
        memory_utilization=arguments.memory_utilization,
        toggles={
            **BASELINE,
            "tensor_parallel": ToggleValue(str(sharing)),
            "quantization": ToggleValue(arguments.quantization),
            "kv_cache_dtype": ToggleValue(arguments.kv_dtype),
        },
    )
    try:
        return facts_of(settings)
    except EngineError as error:
        if error.about == "tensor_parallel":
            error.add_note("GPUs that share one copy of the model: --tensor-parallel N")
        raise
