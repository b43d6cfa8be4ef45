"""Measure planned runs: start engines, prepare caches, prove toggles, store records."""

from harness.experiment.cache_state import AS_FOUND
from harness.experiment.manifest import Outcome
from harness.experiment.prediction import Prediction, predict
from harness.experiment.request_sets import RequestSets
from harness.experiment.single_run import run_alone
from harness.experiment.sweep import SweepRunner

__all__ = [
    "AS_FOUND",
    "Outcome",
    "Prediction",
    "RequestSets",
    "SweepRunner",
    "predict",
    "run_alone",
]
