"""docs/sweep-file.md against the forms that read a sweep file: neither has a key more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from repository import ROOT

from harness.adapters.base import BASELINE, TOGGLES
from harness.sweep_file.form import engine_models, field_models, models
from harness.sweep_file.form.field_models import Form

PAGE = (ROOT / "docs" / "sweep-file.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[Form]] = {
    "The whole file": models.SweepForm,
    "hardware": models.HardwareForm,
    "engines": engine_models.Engine,
    "runtime": engine_models.RuntimeForm,
    "base": models.Base,
    "speculative": models.SpeculationForm,
    "tree": models.DraftTree,
    "shared-prefix": models.SharedPrefixForm,
    "multi-turn": models.MultiTurnForm,
    "trace": models.TraceForm,
    "uniform": field_models.UniformForm,
    "lognormal": field_models.LognormalForm,
    "empirical": field_models.EmpiricalLengths,
    "closed loop": models.ClosedForm,
    "open loop": models.RateForm,
    "gamma": models.GammaShape,
    "times of a trace": models.TraceTimesForm,
    "slo": models.Limits,
}
# Forms that only wrap one of the above, or that others are made from.
WRAPPERS = {"UniformLengths", "LognormalLengths", "Gamma", "LoadForm"}
# Defaults that the file writes otherwise than the form holds them.
WRITTEN = {"think_time": "0 s", "request_timeout": "1800 s"}


def table(section: str) -> dict[str, list[str]]:
    """Return the first table under a heading of the page: key → its other cells."""
    body = re.split(rf"^#+ {re.escape(section)}$", PAGE, flags=re.MULTILINE)[1]
    body = re.split(r"^#+ ", body, flags=re.MULTILINE)[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in body.splitlines() if line[:3] == "| `"]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def forms(form: type[Form] = Form) -> Iterator[type[Form]]:
    for child in form.__subclasses__():
        yield child
        yield from forms(child)


def default_text(key: str, field: Any) -> str:
    """Return what the page must begin a key's last cell with."""
    if field.is_required():
        return "needed"
    if isinstance(field.default, Form):
        return "see below"
    if field.default is None:
        return "none"
    return f"`{WRITTEN.get(key, field.default)}`"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_stands_in_the_page_with_its_default(section: str) -> None:
    """Whoever adds a key, takes one away, or moves a default, has to say so there."""
    form = SECTIONS[section]
    fields = form.model_fields

    told = table(section)

    assert set(told) == set(fields)
    for key, field in fields.items():
        found = told[key][-1]
        assert found.split(":")[0] == default_text(key, field), key
        words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        assert [word for word in words if f"`{word}`" not in told[key][0]] == [], key


def test_every_form_has_a_section() -> None:
    """A new kind of workload or load is on the page."""
    known = set(SECTIONS.values())

    assert {form.__name__ for form in forms() if form not in known} == WRAPPERS


def test_every_toggle_stands_in_the_page_with_its_values() -> None:
    """Names, values and the baseline are those that the engines share."""
    told = table("toggles")

    assert set(told) == set(TOGGLES)
    for name, values in TOGGLES.items():
        for value in values:
            assert f"`{value}`" in told[name][0], name
        base = "hardware.count" if name == "tensor_parallel" else BASELINE[name].label
        assert told[name][1] == f"`{base}`"
