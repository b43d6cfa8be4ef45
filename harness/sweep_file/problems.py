"""The one error type of a sweep file, and how its problems are collected and worded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Where a value stands in the file: `("load", 0, "requests")` is `load[0].requests`.
Place = tuple[str | int, ...]


class SpecError(Exception):
    """A sweep that cannot be planned, for reasons the user can mend. One line per problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a sweep file."""

    place: Place  # empty: the file as a whole
    message: str  # what was wrong, and what was expected or found
    about_key: bool = False  # the last part of the place is a key that the message names itself


def spec_error(file: str, problems: Iterable[Problem], lines: Mapping[Place, int]) -> SpecError:
    """Return one error that names every problem once: file, line, place, message; in file order."""
    located = {(line_of(problem.place, lines), problem) for problem in problems}
    ordered = sorted(located, key=lambda item: (item[0], str(item[1].place), item[1].message))
    return SpecError("\n".join(_text(file, line, problem) for line, problem in ordered))


def line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """Return the line, from 1, of `place` or of the nearest thing around it that has a line."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or what there is to choose from when nothing is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; expected one of: {', '.join(names)}" if names else ""


def shown(value: object) -> str:
    """Return a value of the file as its author would know it, cut when it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def written(place: Place) -> str:
    """Return a place the way the user reads it: `engines[0].toggles`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _text(file: str, line: int, problem: Problem) -> str:
    place = problem.place[:-1] if problem.about_key else problem.place
    where = f"{written(place)}: " if place else ""
    return f"{file}: line {line}: {where}{problem.message}"
