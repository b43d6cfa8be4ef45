"""The capability matrix as text: toggles × engines, with reasons as footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.plan.capability import Capability
from harness.plan.shared_settings import BaselineSetting

READING = (
    "  values without a number are supported; (always): the only supported value; [n]: see below"
)
Rows = list[tuple[str, ...]]  # the first row is the header
NOT_SHARED = "  ≠ marks a setting that differs between the engines"


def capability_rows(found: Sequence[Capability]) -> tuple[Rows, list[str]]:
    """Return the table of toggles × engines, and its numbered footnotes."""
    engines = list(dict.fromkeys(one.label for one in found))
    notes: dict[tuple[str, str, str], list[str]] = {}
    cells: dict[tuple[str, str], list[str]] = {}
    for one in found:
        note = _note(one)
        mark = ""
        if note:
            notes.setdefault((one.label, one.toggle, note), []).append(_short(one, found))
            mark = f"[{list(notes).index((one.label, one.toggle, note)) + 1}]"
        always = " (always)" if one.status == "always" else ""
        cells.setdefault((one.toggle, one.label), []).append(_short(one, found) + mark + always)
    rows = [
        ("toggle", *engines),
        *(
            (toggle, *(", ".join(cells.get((toggle, name), ())) for name in engines))
            for toggle in dict.fromkeys(one.toggle for one in found)
        ),
    ]
    return rows, list(_footnotes(notes))


def settings_rows(found: Sequence[BaselineSetting]) -> Rows:
    """Return the settings of all baselines, with a mark on those that differ."""
    engines = list(found[0].values)
    return [
        ("", "baseline", *engines),
        *(
            ("" if one.shared else "≠", one.name, *(one.values[name] or "–" for name in engines))
            for one in found
        ),
    ]


def _note(one: Capability) -> str:
    drags = ", ".join(f"{name} {value}" for name, value in one.drags.items())
    reason = "; ".join(filter(None, [one.reason, f"implies {drags}" if drags else ""]))
    if one.status == "implied":
        return f"implied: {reason}"
    return reason


def _footnotes(notes: dict[tuple[str, str, str], list[str]]) -> Iterable[str]:
    for number, ((label, toggle, note), values) in enumerate(notes.items(), 1):
        yield f"  [{number}] {label}, {toggle} {', '.join(values)}: {note}"


def _short(one: Capability, found: Sequence[Capability]) -> str:
    """Return a value without its options, unless another value has the same kind."""
    kind = one.value.partition("(")[0]
    same_kind = [
        other
        for other in found
        if (other.label, other.toggle, other.value.partition("(")[0])
        == (one.label, one.toggle, kind)
    ]
    return kind if len(same_kind) == 1 else one.value
