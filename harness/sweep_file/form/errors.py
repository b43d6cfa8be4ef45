"""The errors of pydantic in the words of a sweep file's author."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.adapters import TOGGLES
from harness.sweep_file.form.engine_models import Engine
from harness.sweep_file.form.field_models import (
    MOST_LETTERS,
    EmpiricalLengths,
    LognormalForm,
    LognormalLengths,
    UniformForm,
    UniformLengths,
)
from harness.sweep_file.form.models import (
    Base,
    ClosedForm,
    DraftTree,
    Gamma,
    GammaShape,
    HardwareForm,
    Limits,
    MultiTurnForm,
    RateForm,
    SharedPrefixForm,
    SpeculationForm,
    SweepForm,
    TraceForm,
    TraceTimesForm,
)
from harness.sweep_file.problems import Place, Problem, did_you_mean, shown
from harness.sweep_file.quantities import plain_number

AnyForm = TypeVar("AnyForm", bound=BaseModel)

# The mapping that an unknown key was found in: by the nearest key or union tag of its place.
_FORMS: dict[str | int, type[BaseModel]] = {
    "hardware": HardwareForm,
    "base": Base,
    "slo": Limits,
    "engines": Engine,
    "uniform": UniformForm,
    "lognormal": LognormalForm,
    "gamma": GammaShape,
    "speculative": SpeculationForm,
    "tree": DraftTree,
    "<uniform>": UniformLengths,
    "<lognormal>": LognormalLengths,
    "<empirical>": EmpiricalLengths,
    "<shared-prefix>": SharedPrefixForm,
    "<multi-turn>": MultiTurnForm,
    "<trace>": TraceForm,
    "<closed>": ClosedForm,
    "<open>": RateForm,
    "<trace-times>": TraceTimesForm,
    "<gamma>": Gamma,
}
_SHORT = 5  # letters of a value of `extra_args` that is no secret
_WANTED = {
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected a word",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "model_type": "expected a mapping",
    "dict_type": "expected a mapping",
    "too_short": "expected at least one entry",
    "string_too_short": "expected a word",
    "string_too_long": f"expected at most {MOST_LETTERS} letters",
    "string_pattern_mismatch": "expected letters, digits, '.', '_' and '-' only",
    "finite_number": "expected a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def validated(
    form: type[AnyForm], data: Any, *, context: Mapping[str, Any] | None = None, at: Place = ()
) -> tuple[AnyForm | None, list[Problem]]:
    """Return `data` as a form, or None and what is wrong with it; it stands at `at` in the file."""
    try:
        return form.model_validate(data, context=context), []
    except ValidationError as error:
        return None, _problems(error.errors(include_url=False), data, at)


def _problems(details: Sequence[ErrorDetails], data: object, at: Place) -> list[Problem]:
    """Return one problem for each detail, a missing key whose misspelling is there left out."""
    unknown = {item["loc"] for item in details if item["type"] == "extra_forbidden"}
    problems = []
    for item in details:
        if item["type"] == "missing" and _misspelt(item["loc"], unknown):
            continue
        place = (*at, *_steps(item["loc"], data))
        about_key = item["type"] == "extra_forbidden"
        problems.append(Problem(place, _message(item, at), about_key=about_key))
    return problems


def _misspelt(missing: tuple[str | int, ...], unknown: set[tuple[str | int, ...]]) -> bool:
    *around, key = missing
    return any(
        list(place[:-1]) == around and f"'{key}'" in did_you_mean(str(place[-1]), [str(key)])
        for place in unknown
    )


def _steps(loc: tuple[str | int, ...], data: Any) -> Iterator[str | int]:
    """Yield the parts of a place that the file has: no union tags, no list around one entry."""
    for part in loc:
        in_mapping = isinstance(data, Mapping) and part in data
        if in_mapping or (isinstance(data, list) and isinstance(part, int)):
            data = data[part]
            yield part


def _message(item: ErrorDetails, at: Place) -> str:
    kind, found = item["type"], item["input"]
    if kind == "extra_forbidden":
        return f"unknown key '{item['loc'][-1]}'{did_you_mean(*_unknown(item['loc'], at))}"
    if kind == "missing":
        return f"the key '{item['loc'][-1]}' is missing"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {plain_number(item['ctx'][bound])}, found {shown(found)}"
    if kind == "value_error":  # raised in `spec_models`, which words it in full
        return str(item["ctx"]["error"])
    if kind == "literal_error":
        expected = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"found {shown(found)}{did_you_mean(str(found), expected)}"
    return f"{_WANTED.get(kind, item['msg'])}; found {_shown_at(item['loc'], found)}"


def _shown_at(loc: tuple[str | int, ...], found: object) -> str:
    """Return a value as its author knows it; one of a variable or a flag may be a secret."""
    secret = "env" in loc or ("extra_args" in loc and len(str(found)) > _SHORT)
    return f"a {type(found).__name__}, which is not shown" if secret else shown(found)


def _unknown(loc: tuple[str | int, ...], at: Place) -> tuple[str, list[str]]:
    """Return an unknown key and the keys that there are where it stands."""
    around = [part for part in (*at, *loc[:-1]) if part in _FORMS]
    form = _FORMS[around[-1]] if around else SweepForm
    return str(loc[-1]), [*form.model_fields, *(TOGGLES if form is Base else ())]
