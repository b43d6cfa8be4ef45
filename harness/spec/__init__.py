"""The sweep file: YAML text in, one frozen and checked `SweepSpec` out. pydantic stays in here."""

from harness.spec.lists import AnyWorkload, WorkloadChoice
from harness.spec.load import Load
from harness.spec.problems import SpecError
from harness.spec.sweep_spec import EngineChoice, Hardware, Slo, SweepSpec, load_sweep
from harness.spec.toggles import ToggleChoice

__all__ = [
    "AnyWorkload",
    "EngineChoice",
    "Hardware",
    "Load",
    "Slo",
    "SpecError",
    "SweepSpec",
    "ToggleChoice",
    "WorkloadChoice",
    "load_sweep",
]
