"""The sweep file: YAML text in, one frozen and checked `SweepSpec` out."""

from harness.sweep_file.designs import BASELINE_ARM, CONTROL_ARM, CONTROLS, Arm, arms_of
from harness.sweep_file.lists import AnyWorkload, WorkloadChoice
from harness.sweep_file.load import Load
from harness.sweep_file.problems import Place, Problem, SpecError, did_you_mean
from harness.sweep_file.quantities import duration_ns, duration_text, plain_number
from harness.sweep_file.sweep_spec import EngineChoice, SweepSpec, load_sweep
from harness.sweep_file.toggles import ToggleChoice, read_toggles
from harness.sweep_file.yaml_source import text_without_headers

__all__ = [
    "BASELINE_ARM",
    "CONTROLS",
    "CONTROL_ARM",
    "AnyWorkload",
    "Arm",
    "EngineChoice",
    "Load",
    "Place",
    "Problem",
    "SpecError",
    "SweepSpec",
    "ToggleChoice",
    "WorkloadChoice",
    "arms_of",
    "did_you_mean",
    "duration_ns",
    "duration_text",
    "load_sweep",
    "plain_number",
    "read_toggles",
    "text_without_headers",
]
