"""The form of the file in pydantic, and its errors in the words of the author."""

from harness.sweep_file.form.engine_models import ATTACHED, Engine, RuntimeForm
from harness.sweep_file.form.errors import validated
from harness.sweep_file.form.field_models import (
    MOST_LETTERS,
    EmpiricalLengths,
    LengthsForm,
    LognormalLengths,
    UniformLengths,
)
from harness.sweep_file.form.models import (
    LISTS,
    AnyLoad,
    ClosedForm,
    Gamma,
    Lists,
    MultiTurnForm,
    RateForm,
    SharedPrefixForm,
    SpeculationForm,
    SweepForm,
    TraceForm,
    WorkloadForm,
)

__all__ = [
    "ATTACHED",
    "LISTS",
    "MOST_LETTERS",
    "AnyLoad",
    "ClosedForm",
    "EmpiricalLengths",
    "Engine",
    "Gamma",
    "LengthsForm",
    "Lists",
    "LognormalLengths",
    "MultiTurnForm",
    "RateForm",
    "RuntimeForm",
    "SharedPrefixForm",
    "SpeculationForm",
    "SweepForm",
    "TraceForm",
    "UniformLengths",
    "WorkloadForm",
    "validated",
]
