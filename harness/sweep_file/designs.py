"""Which arms a design has: the combinations of toggle values that a sweep compares. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from harness.adapters import ToggleValue
from harness.sweep_file.toggles import ToggleChoice

BASELINE_ARM = "baseline"
CONTROL_ARM = "baseline-again"  # the A/A control: what chance alone does
CONTROLS = (BASELINE_ARM, CONTROL_ARM)
MOST_ARMS = 4096

Treatment = tuple[str, ToggleValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One combination of toggle values."""

    name: str
    values: Mapping[str, ToggleValue]  # those that differ from the baseline; empty for a control


def arms_of(design: str, toggles: Sequence[ToggleChoice]) -> tuple[Arm, ...]:
    """Return the arms of a design: baseline, the baseline again, then the treatments.

    `one-at-a-time` flips each toggle alone, to each of its other values. `pairs` adds every two
    treatments of different toggles, so that one sees what they do to each other. `full` is every
    combination. `leave-one-out` flips all toggles, and all but each one. `design_fault` says
    beforehand which toggles a design can take.
    """
    singles = [[(choice.name, value) for value in choice.values[1:]] for choice in toggles]
    combinations_of = {
        "one-at-a-time": _one_at_a_time,
        "leave-one-out": _leave_one_out,
        "pairs": _pairs,
        "full": _full,
    }[design]
    controls = [Arm(name=name, values={}) for name in CONTROLS]
    return (*controls, *(_arm(treatments) for treatments in combinations_of(singles)))


def design_fault(design: str, toggles: Sequence[ToggleChoice]) -> str | None:
    """Return why these toggles cannot make this design, and what to do; None when they can."""
    if design == "full" and (arms := prod(len(choice.values) for choice in toggles)) > MOST_ARMS:
        return f"full has {arms:,} arms, more than {MOST_ARMS:,}; name fewer toggles"
    several = [choice.name for choice in toggles if len(choice.values) > 2]
    if design == "leave-one-out" and several:
        names = ", ".join(several)
        return f"leave-one-out needs two values a toggle: the base and one more; see {names}"
    return None


def _one_at_a_time(singles: list[list[Treatment]]) -> Iterator[tuple[Treatment, ...]]:
    for values in singles:
        for treatment in values:
            yield (treatment,)


def _pairs(singles: list[list[Treatment]]) -> Iterator[tuple[Treatment, ...]]:
    yield from _one_at_a_time(singles)
    for one, other in combinations(singles, 2):
        yield from product(one, other)


def _leave_one_out(singles: list[list[Treatment]]) -> Iterator[tuple[Treatment, ...]]:
    everything = tuple(values[0] for values in singles)
    if everything:
        yield everything
    if len(everything) > 1:
        yield from reversed(list(combinations(everything, len(everything) - 1)))


def _full(singles: list[list[Treatment]]) -> Iterator[tuple[Treatment, ...]]:
    """Yield every combination but the baseline, those with fewer flips first."""
    options: Iterable[Sequence[Treatment | None]] = [[None, *values] for values in singles]
    grid = [tuple(item for item in cell if item is not None) for cell in product(*options)]
    yield from sorted((cell for cell in grid if cell), key=len)


def _arm(treatments: tuple[Treatment, ...]) -> Arm:
    name = "+".join(f"{toggle}={value.label}" for toggle, value in treatments)
    return Arm(name=name, values=dict(treatments))
