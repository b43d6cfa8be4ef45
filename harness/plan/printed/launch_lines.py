"""A launch line as text: the command, the lines of its options file, and differences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

_FLAG = re.compile(r"--?[A-Za-z]")  # -1 is a value
_FILE = "# "  # starts the lines of an options file in a launch line


def launch_lines(line: Sequence[str]) -> list[str]:
    """Return the command in shell syntax, then the lines of its options file."""
    end = _command_end(line)
    return [shlex.join(line[:end]), *line[end:]]


def launch_difference(line: Sequence[str], baseline: Sequence[str], known: Collection[str]) -> str:
    """Return the words that a launch line adds to the baseline's, or else those that it omits.

    A flag and its values are compared together. Words in `known` are left out.
    """
    own, base = _units(line), _units(baseline)
    added = [unit for unit in own if unit not in base]
    difference = [unit.strip() for unit in added if unit not in known]
    if not added:
        left_out = (unit for unit in base if unit not in own)
        difference = [f"without {unit.strip()}" for unit in left_out if unit not in known]
    return " ".join(difference)


def _command_end(line: Sequence[str]) -> int:
    return next((i for i, word in enumerate(line) if word.startswith(_FILE)), len(line))


def _units(line: Sequence[str]) -> list[str]:
    """Return each flag joined with its values, and all other words and lines unchanged."""
    units: list[str] = []
    end = _command_end(line)
    for word in line[:end]:
        takes_value = bool(units) and _FLAG.match(units[-1]) and not _FLAG.match(word)
        if takes_value:
            units[-1] += f" {word}"
        else:
            units.append(word)
    return [*units, *line[end:]]
