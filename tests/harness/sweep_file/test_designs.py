from __future__ import annotations

import pytest

from harness.adapters.base import ToggleValue
from harness.sweep_file import ToggleChoice
from harness.sweep_file.designs import arms_of, design_fault


def toggle(name: str, *labels: str) -> ToggleChoice:
    return ToggleChoice(name=name, values=tuple(ToggleValue(label) for label in labels))


THREE = (toggle("a", "on", "off"), toggle("b", "x", "y", "z"), toggle("c", "1", "2"))
SWITCHES = (toggle("a", "on", "off"), toggle("b", "on", "off"), toggle("c", "on", "off"))


@pytest.mark.parametrize(
    ("design", "toggles", "treatments"),
    [
        ("one-at-a-time", THREE, ["a=off", "b=y", "b=z", "c=2"]),
        (
            "pairs",
            THREE,
            [
                "a=off", "b=y", "b=z", "c=2", "a=off+b=y", "a=off+b=z", "a=off+c=2", "b=y+c=2",
                "b=z+c=2",
            ],
        ),
        (
            "full",
            THREE,
            [
                "c=2", "b=y", "b=z", "a=off", "b=y+c=2", "b=z+c=2", "a=off+c=2", "a=off+b=y",
                "a=off+b=z", "a=off+b=y+c=2", "a=off+b=z+c=2",
            ],
        ),
        (
            "leave-one-out",
            SWITCHES,
            ["a=off+b=off+c=off", "b=off+c=off", "a=off+c=off", "a=off+b=off"],
        ),
        ("leave-one-out", SWITCHES[:1], ["a=off"]),
        ("full", (), []),
        ("leave-one-out", (), []),
    ],
)  # fmt: skip
def test_a_design_names_its_arms(
    design: str, toggles: tuple[ToggleChoice, ...], treatments: list[str]
) -> None:
    """Each design has the baseline, the baseline again, and its own combinations, each once."""
    arms = arms_of(design, toggles)

    assert [arm.name for arm in arms] == ["baseline", "baseline-again", *treatments]


def test_an_arm_holds_what_differs_from_the_baseline() -> None:
    """The controls differ in nothing; a treatment in what its name says."""
    arms = {arm.name: arm.values for arm in arms_of("pairs", THREE)}

    assert arms["baseline"] == arms["baseline-again"] == {}
    assert arms["a=off+b=z"] == {"a": ToggleValue("off"), "b": ToggleValue("z")}


def test_a_grid_may_not_explode() -> None:
    """4,096 arms are the most; one toggle more is refused before anything is counted out."""
    twelve = tuple(toggle(f"t{i}", "on", "off") for i in range(12))

    assert design_fault("full", twelve) is None
    assert "8,192 arms" in (design_fault("full", (*twelve, toggle("one", "on", "off"))) or "")
    assert design_fault("one-at-a-time", (*twelve, *THREE)) is None


def test_leaving_one_out_needs_one_flip_a_toggle() -> None:
    """With three values nobody can say which of them the others are left with."""
    assert "see b" in (design_fault("leave-one-out", THREE) or "")
    assert design_fault("leave-one-out", SWITCHES) is None
