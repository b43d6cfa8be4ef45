"""The step-time model: models and GPUs as numbers, and their roofline."""

from harness.adapters.embedded.step_time.accuracy import accuracy_of, known_step_errors
from harness.adapters.embedded.step_time.calibration import ASSUMPTIONS
from harness.adapters.embedded.step_time.deployment import Deployment, check_context
from harness.adapters.embedded.step_time.fitted import (
    SCHEDULED_TOGGLES,
    FittedStepTime,
    StepCosts,
    StepProfile,
    profile_from,
    profile_text,
    read_profile,
)
from harness.adapters.embedded.step_time.forward import ForwardPass
from harness.adapters.embedded.step_time.hardware import all_gpus, find_gpu
from harness.adapters.embedded.step_time.memory import (
    KvCapacity,
    MemoryLimits,
    kv_bytes_per_token,
    kv_capacity,
    unchecked_kv_capacity,
    usable_bytes,
    weight_bytes,
)
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

__all__ = [
    "ASSUMPTIONS",
    "SCHEDULED_TOGGLES",
    "Deployment",
    "FittedStepTime",
    "ForwardPass",
    "KvCapacity",
    "MemoryLimits",
    "StepCosts",
    "StepProfile",
    "StepTime",
    "accuracy_of",
    "all_gpus",
    "check_context",
    "find_gpu",
    "find_model",
    "known_step_errors",
    "kv_bytes_per_token",
    "kv_capacity",
    "profile_from",
    "profile_text",
    "read_profile",
    "unchecked_kv_capacity",
    "usable_bytes",
    "weight_bytes",
]
