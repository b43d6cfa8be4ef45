"""The embedded engine: a real scheduler with step times from a calibrated model.

Other packages import the engine and its step times from here, and the server from `server`.
"""

from harness.adapters.embedded.adapter import EmbeddedAdapter
from harness.adapters.embedded.capacity import Capacity, DecodeStep, capacity_of, decode_floor
from harness.adapters.embedded.engine import Sequence
from harness.adapters.embedded.in_process import InProcessEngine
from harness.adapters.embedded.prediction import (
    ReportedValues,
    as_scheduled,
    predicted_endpoint,
    prediction_basis,
    roof_sides_s,
)
from harness.adapters.embedded.step_time import (
    SCHEDULED_TOGGLES,
    StepCosts,
    StepProfile,
    profile_text,
    read_profile,
)

__all__ = [
    "SCHEDULED_TOGGLES",
    "Capacity",
    "DecodeStep",
    "EmbeddedAdapter",
    "InProcessEngine",
    "ReportedValues",
    "Sequence",
    "StepCosts",
    "StepProfile",
    "as_scheduled",
    "capacity_of",
    "decode_floor",
    "predicted_endpoint",
    "prediction_basis",
    "profile_text",
    "read_profile",
    "roof_sides_s",
]
