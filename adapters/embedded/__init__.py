"""The embedded engine: real scheduling, step times from a calibrated model."""

from harness.adapters.embedded.adapter import EmbeddedAdapter, EmbeddedEndpoint
from harness.adapters.embedded.capacity import Capacity, Step, capacity, decode_floor
from harness.adapters.embedded.prediction import (
    Told,
    as_scheduled,
    predicted_endpoint,
    prediction_basis,
    roof_sides_s,
)

__all__ = [
    "Capacity",
    "EmbeddedAdapter",
    "EmbeddedEndpoint",
    "Step",
    "Told",
    "as_scheduled",
    "capacity",
    "decode_floor",
    "predicted_endpoint",
    "prediction_basis",
    "roof_sides_s",
]
