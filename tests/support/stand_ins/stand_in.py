"""Settings that start the stand-in vLLM, and a look at which processes of a test are left."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.runtime import Runtime

SCRIPT = Path(__file__).with_name("stand_in_vllm.py")


def settings(*faults: str, **toggles: str | ToggleValue) -> EngineSettings:
    """Return the settings of a stand-in whose model name no other process has in its words."""
    values = {
        name: value if isinstance(value, ToggleValue) else ToggleValue(value)
        for name, value in toggles.items()
    }
    return EngineSettings(
        model=f"model-{uuid.uuid4().hex}",
        gpu="none",
        gpu_count=1,
        max_model_len=2048,
        max_num_seqs=8,
        toggles={**BASELINE, "tensor_parallel": ToggleValue("1"), **values},
        runtime=Runtime(command=(sys.executable, str(SCRIPT), ",".join(faults) or "-")),
        start_timeout_s=20.0,
    )


def processes_with(word: str) -> list[int]:
    """Return the living processes other than this one that have `word` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line:
                found.append(int(entry.name))
    return found


def gone_within(word: str, seconds: float) -> bool:
    """Return whether every process with `word` on its command line ends within `seconds`."""
    deadline_s = time.monotonic() + seconds
    while processes_with(word):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True
