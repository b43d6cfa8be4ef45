"""One sweep: start engines, measure runs, prove toggles, store records."""

from harness.experiment.counter_moves import counter_moves
from harness.experiment.diagnosis_facts import diagnosis_facts
from harness.experiment.measurement import Outcome
from harness.experiment.prediction import Prediction, predict
from harness.experiment.probe import probe, refused
from harness.experiment.prompt_counts import prompt_counts
from harness.experiment.request_sets import RequestSets
from harness.experiment.sweep import Sweep

__all__ = [
    "Outcome",
    "Prediction",
    "RequestSets",
    "Sweep",
    "counter_moves",
    "diagnosis_facts",
    "predict",
    "probe",
    "prompt_counts",
    "refused",
]
