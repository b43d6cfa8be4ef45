"""Settings that start the stand-in for TensorRT-LLM, and environments in which it is installed."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.runtime import Runtime

SCRIPT = Path(__file__).with_name("stand_in_trtllm.py")
VERSIONS = {"1.1": "1.1.0", "1.3": "1.3.0rc3", "main": "1.4.0rc1"}  # one of each family
PATIENCE = "patience=0.2"  # of its /metrics: TensorRT-LLM's is 2 s


def settings(*faults: str, **toggles: str | ToggleValue) -> EngineSettings:
    """Return the settings of a stand-in whose model name no other process has in its words."""
    values = {
        name: value if isinstance(value, ToggleValue) else ToggleValue(value)
        for name, value in toggles.items()
    }
    return EngineSettings(
        model=f"model-{uuid.uuid4().hex}",
        gpu="h200",
        gpu_count=1,
        max_model_len=2048,
        max_num_seqs=8,
        toggles={**BASELINE, "tensor_parallel": ToggleValue("1"), **values},
        runtime=Runtime(command=(sys.executable, str(SCRIPT), ",".join((PATIENCE, *faults)))),
        start_timeout_s=60.0,
    )


def installed(folder: Path, version: str, *faults: str) -> Runtime:
    """Return an environment in which the stand-in is installed as a version of TensorRT-LLM."""
    program = folder / "bin" / "trtllm-serve"
    program.parent.mkdir(parents=True)
    words = ",".join((f"version={version}", PATIENCE, *faults))
    script = f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" {words} "$@"\n'
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    packages = folder / "lib" / "python3.12" / "site-packages"
    (packages / f"tensorrt_llm-{version}.dist-info").mkdir(parents=True)
    return Runtime(venv=folder)
