"""The toggles of a sweep file: their names and the values to compare, the first being the base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters import BASELINE, GPU_TOGGLES, TOGGLES, ToggleValue
from harness.sweep_file.form import SpeculationForm, validated
from harness.sweep_file.problems import Place, Problem, did_you_mean, shown

NUMBERS = (*GPU_TOGGLES, "block_size")  # toggles whose value is a whole number
_SWITCH = ("on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToggleChoice:
    """A toggle and the values that the sweep compares."""

    name: str
    values: tuple[ToggleValue, ...]  # the first is the base; at least two, all different


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggles:
    """The toggles of a sweep file."""

    base: Mapping[str, ToggleValue]  # those that the file sets for every arm
    choices: tuple[ToggleChoice, ...]


def read_toggles(data: Mapping[str, Any], problems: list[Problem]) -> Toggles:
    """Return the toggles in `base` and in `toggles`; what is wrong is added to `problems`."""
    reader = _ToggleReader(problems)
    base_data = data.get("base")
    base = reader.base(base_data if isinstance(base_data, Mapping) else {})
    choices = reader.choices(data["toggles"], base) if "toggles" in data else ()
    return Toggles(base=base, choices=choices)


def without_toggles(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a file without the toggles in `base`, which pydantic need not know."""
    base = data.get("base")
    if not isinstance(base, Mapping):
        return dict(data)
    return {**data, "base": {key: value for key, value in base.items() if key not in TOGGLES}}


class _ToggleReader:
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def base(self, data: Mapping[str, Any]) -> dict[str, ToggleValue]:
        read = {
            name: self.value(name, data[name], ("base", name)) for name in TOGGLES if name in data
        }
        return {name: value for name, value in read.items() if value is not None}

    def choices(self, data: object, base: Mapping[str, ToggleValue]) -> tuple[ToggleChoice, ...]:
        place: Place = ("toggles",)
        if data is None or data == []:
            self._add(place, "expected at least one toggle; leave the key out to flip nothing")
            return ()
        entries = list(enumerate(data)) if isinstance(data, list) else [(None, data)]
        found: dict[str, ToggleChoice] = {}
        for number, entry in entries:
            at = place if number is None else (*place, number)
            for name, values, where in self._named(entry, at):
                if name in found:
                    self._add(where, f"the toggle '{name}' stands twice; put its values together")
                elif choice := self._choice(name, values, where, base):
                    found[name] = choice
        return tuple(found.values())

    def _named(self, entry: object, at: Place) -> list[tuple[str, object, Place]]:
        """Return name, values (None: on and off) and place of each toggle that an entry names."""
        if isinstance(entry, str):
            named: list[tuple[str, object, Place]] = [(entry, None, at)]
        elif isinstance(entry, Mapping) and entry:
            named = [(name, values, (*at, name)) for name, values in entry.items()]
        else:
            self._add(at, f"expected a toggle such as 'prefix_caching'; found {shown(entry)}")
            return []
        for name, _, where in named:
            if name not in TOGGLES:
                self._add(where, f"unknown toggle '{name}'{did_you_mean(name, TOGGLES)}")
        return [item for item in named if item[0] in TOGGLES]

    def _choice(
        self, name: str, data: object, at: Place, base: Mapping[str, ToggleValue]
    ) -> ToggleChoice | None:
        values = self._switch(name, at, base) if data is None else self._values(name, data, at)
        if not values:
            return None
        if len(set(values)) < max(2, len(values)):
            self._add(at, "expected at least two values, each once; the first is the base")
            return None
        if name in base and base[name] != values[0]:
            first, set_to = values[0].label, base[name].label
            self._add(at, f"the first value is the base, but it is {first} and base says {set_to}")
            return None
        return ToggleChoice(name=name, values=values)

    def _switch(
        self, name: str, at: Place, base: Mapping[str, ToggleValue]
    ) -> tuple[ToggleValue, ...]:
        """Return on and off, the base first, for a toggle without values."""
        if TOGGLES[name] != _SWITCH:
            example = ", ".join(TOGGLES[name][:2]) or "VALUE, VALUE"
            self._add(at, f"'{name}' is no switch: name its values, as in {name}: [{example}]")
            return ()
        first = base.get(name, BASELINE[name])
        return first, ToggleValue("off" if first.kind == "on" else "on")

    def _values(self, name: str, data: object, at: Place) -> tuple[ToggleValue, ...]:
        if not isinstance(data, list):
            self._add(at, f"expected a list of values, the base first; found {shown(data)}")
            return ()
        read = [self.value(name, item, (*at, number)) for number, item in enumerate(data)]
        values = tuple(value for value in read if value is not None)
        return values if len(values) == len(read) else ()

    def value(self, name: str, data: object, at: Place) -> ToggleValue | None:
        """Return one value of a toggle; None, and a problem, when it has no such value."""
        if isinstance(data, Mapping) and name == "speculative":
            return self._speculation(data, at)
        word = _word(data)
        if name == "block_size" and word == "auto":
            return ToggleValue(word)
        if name in NUMBERS:
            if isinstance(data, int) and not isinstance(data, bool) and data >= 1:
                return ToggleValue(str(data))
            self._add(at, f"expected a whole number of at least 1; found {shown(data)}")
        elif TOGGLES[name] and word not in TOGGLES[name]:
            self._add(at, f"'{name}' cannot be {shown(data)}{did_you_mean(word, TOGGLES[name])}")
        elif not word or not isinstance(data, str | bool):
            self._add(at, f"expected a word; found {shown(data)}")
        else:
            return ToggleValue(word)
        return None

    def _speculation(self, data: Mapping[str, Any], at: Place) -> ToggleValue | None:
        form, problems = validated(SpeculationForm, data, at=at)
        self.problems.extend(problems)
        if form is None:
            return None
        options = form.model_dump(exclude={"method"}, exclude_none=True)
        if form.tree is not None:
            options["tree"] = f"{form.tree.branches}x{form.tree.depth}"
        return ToggleValue(form.method, tuple(options.items()))

    def _add(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))


def _word(data: object) -> str:
    """Return the word of a value: `true` is `on` and `false` is `off`."""
    if isinstance(data, bool):
        return "on" if data else "off"
    return data if isinstance(data, str) else str(data)


def baseline_of(toggles: Toggles, gpu_count: int) -> dict[str, ToggleValue]:
    """Return every toggle with its value in the baseline of this sweep.

    `tensor_parallel` has the GPUs that the other kinds of parallelism leave, unless the file sets
    it.
    """
    first = {choice.name: choice.values[0] for choice in toggles.choices}
    values = {**BASELINE, **toggles.base, **first}
    copies = math.prod(int(values[name].kind) for name in GPU_TOGGLES if name in BASELINE)
    tensor = ToggleValue(str(max(1, gpu_count // copies)))
    return {**BASELINE, "tensor_parallel": tensor, **values}
