"""The capability of each engine: its support of every toggle and value, by its adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.adapters import (
    TOGGLES,
    EngineAdapter,
    EngineError,
    EngineSettings,
    ToggleValue,
    UnsupportedToggleError,
    remark,
)

# offered: supported. always: the only value. implied: the engine runs another value instead.
# needs: requires other hardware, another model or limit. not offered: never supported.
Status = Literal["offered", "always", "implied", "needs", "not offered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Support of one value of one toggle by one engine, with all else as in the baseline."""

    label: str  # of the engine
    toggle: str
    value: str
    status: Status
    reason: str | None = None  # reason for the status, or a remark
    drags: Mapping[str, str]  # toggle → implied value, if it differs from the baseline

    def facts(self) -> dict[str, Any]:
        """Return the capability as JSON values."""
        return {
            "label": self.label,
            "toggle": self.toggle,
            "value": self.value,
            "status": self.status,
            "reason": self.reason,
            "drags": dict(self.drags),
        }


def capabilities(
    label: str,
    adapter: EngineAdapter,
    requested: EngineSettings,
    values: Mapping[str, tuple[ToggleValue, ...]],
) -> tuple[Capability, ...]:
    """Return the support of an engine for every value of every toggle.

    `requested` is the baseline as requested by the sweep. `values` are the values in the sweep; all
    other values follow them.
    """
    found: list[Capability] = []
    for toggle in TOGGLES:
        tried = [
            _capability(label, adapter, requested, toggle, value)
            for value in _values(toggle, requested, values.get(toggle, ()))
        ]
        found += _always(tried)
    return tuple(found)


def _values(
    toggle: str, requested: EngineSettings, named: tuple[ToggleValue, ...]
) -> Iterator[ToggleValue]:
    """Yield the values of the sweep, the baseline's first, then all other kinds."""
    chosen = dict.fromkeys((requested.toggles[toggle], *named))
    yield from chosen
    kinds = {value.kind for value in chosen}
    yield from (ToggleValue(kind) for kind in TOGGLES[toggle] if kind not in kinds)


def _capability(
    label: str, adapter: EngineAdapter, requested: EngineSettings, toggle: str, value: ToggleValue
) -> Capability:
    alone = replace(requested, toggles={**requested.toggles, toggle: value})
    implied, base = adapter.implied(alone), adapter.implied(requested)
    drags = {name: to.label for name, to in implied.items() if base.get(name) != to}
    drags.pop(toggle, None)
    status, reason = _outcome(adapter, alone, toggle, implied)
    return Capability(
        label=label,
        toggle=toggle,
        value=value.label,
        status=status,
        reason=reason,
        drags=drags if status == "offered" else {},
    )


def _outcome(
    adapter: EngineAdapter,
    alone: EngineSettings,
    toggle: str,
    implied: Mapping[str, ToggleValue],
) -> tuple[Status, str | None]:
    value = alone.toggles[toggle]
    if (becomes := implied.get(toggle, value)) != value:
        why = adapter.reasons(alone).get(toggle, "its other values require it")
        return "implied", f"stays {becomes.label}: {why}"
    try:
        adapter.check(replace(alone, toggles={**alone.toggles, **implied}))
    except EngineError as error:
        text = "; ".join([str(error), *getattr(error, "__notes__", [])])
        reason = text.removeprefix(f"{toggle}: {value.label} ")
        refused = isinstance(error, UnsupportedToggleError) and " needs " not in f" {reason} "
        return ("not offered" if refused else "needs"), reason
    return "offered", remark(alone.gpu, toggle, value.kind)


def _always(tried: list[Capability]) -> list[Capability]:
    """Return the values of one toggle; a single offered value gets the status `always`."""
    offered = [one for one in tried if one.status == "offered"]
    others = {one.status for one in tried if one.status != "offered"}
    if len(offered) != 1 or others != {"not offered"}:
        return tried
    return [replace(one, status="always") if one is offered[0] else one for one in tried]
