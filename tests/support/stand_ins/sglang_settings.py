"""Settings that start the stand-in for SGLang, and environments in which SGLang seems installed."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.runtime import Runtime

SCRIPT = Path(__file__).with_name("stand_in_sglang.py")
NEWEST = "0.5.23"


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
        runtime=Runtime(command=(sys.executable, str(SCRIPT), ",".join(faults) or "-")),
        start_timeout_s=20.0,
    )


def installed(folder: Path, version: str | None = NEWEST) -> Path:
    """Return an environment with a Python and the metadata of a version of SGLang; None: none."""
    for name in ("python", "sglang"):
        program = folder / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    if version is not None:
        (packages / f"sglang-{version}.dist-info").mkdir()
    return folder
