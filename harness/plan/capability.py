"""What each engine can follow: every toggle and value, from the adapters themselves."""

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

# offered: the engine follows. always: it follows, and can do nothing else. implied: it runs another
# value all the same. needs: other hardware, another model or limit. not offered: it never follows.
Status = Literal["offered", "always", "implied", "needs", "not offered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What becomes of one value of one toggle on one engine, all else as in the baseline."""

    label: str  # of the engine
    toggle: str
    value: str
    status: Status
    reason: str | None = None  # why it is not simply offered, or what of it is
    drags: Mapping[str, str]  # toggle → what the value makes of it, where the baseline differs

    def facts(self) -> dict[str, Any]:
        """Return it in plain JSON values."""
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
    """Return what an engine does with every value of every toggle.

    `requested` is the baseline as the sweep requests it, `values` are the sweep's own values of a
    toggle; those that it does not name come after them.
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
    """Yield the sweep's values, the baseline's first, then the kinds that it leaves out."""
    chosen = dict.fromkeys((requested.toggles[toggle], *named))
    yield from chosen
    kinds = {value.kind for value in chosen}
    yield from (ToggleValue(kind) for kind in TOGGLES[toggle] if kind not in kinds)


def _capability(
    label: str, adapter: EngineAdapter, requested: EngineSettings, toggle: str, value: ToggleValue
) -> Capability:
    alone = replace(requested, toggles={**requested.toggles, toggle: value})
    implied, base = adapter.implied(alone), adapter.implied(requested)
    dragged = {name: to.label for name, to in implied.items() if base.get(name) != to}
    dragged.pop(toggle, None)
    status, reason = _outcome(adapter, alone, toggle, implied)
    return Capability(
        label=label,
        toggle=toggle,
        value=value.label,
        status=status,
        reason=reason,
        drags=dragged if status == "offered" else {},
    )


def _outcome(
    adapter: EngineAdapter,
    alone: EngineSettings,
    toggle: str,
    implied: Mapping[str, ToggleValue],
) -> tuple[Status, str | None]:
    value = alone.toggles[toggle]
    if (becomes := implied.get(toggle, value)) != value:
        why = adapter.reasons(alone).get(toggle, "its other values imply it")
        return "implied", f"is {becomes.label} all the same: {why}"
    try:
        adapter.check(replace(alone, toggles={**alone.toggles, **implied}))
    except EngineError as error:
        text = "; ".join([str(error), *getattr(error, "__notes__", [])])
        reason = text.removeprefix(f"{toggle}: {value.label} ")
        refused = isinstance(error, UnsupportedToggleError) and " needs " not in f" {reason} "
        return ("not offered" if refused else "needs"), reason
    return "offered", remark(alone.gpu, toggle, value.kind)


def _always(tried: list[Capability]) -> list[Capability]:
    """Return the values of one toggle; one that has no other beside it is always so."""
    offered = [one for one in tried if one.status == "offered"]
    others = {one.status for one in tried if one.status != "offered"}
    if len(offered) != 1 or others != {"not offered"}:
        return tried
    return [replace(one, status="always") if one is offered[0] else one for one in tried]
