"""The reported configuration: what an engine reports that it runs, as labels of toggles. Pure.

Each engine has its own sources, and a table of readers: toggle → what each source reports. What
they share is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from harness.adapters.base import ToggleValue

Labels = tuple[str | None, ...]  # what each source reports, the most reliable first
Config = TypeVar("Config")  # the sources of one engine
Reader = Callable[[Config, ToggleValue], Labels]  # from the sources and the requested value


def effective_labels(
    config: Config, readers: Mapping[str, Reader[Config]], requested: Mapping[str, ToggleValue]
) -> dict[str, str]:
    """Return toggle → label, of all toggles of which the engine reports anything.

    Where its sources disagree, the one that contradicts the requested value is returned: a run is
    void rather than believed.
    """
    labels = {}
    for toggle, value in requested.items():
        reported = [label for label in readers[toggle](config, value) if label is not None]
        if reported:
            labels[toggle] = next((one for one in reported if one != value.label), reported[0])
    return labels


def base_labels(sources: Mapping[str, Labels], requested: Mapping[str, str]) -> dict[str, str]:
    """Return base setting → value, of all that the engine reports anything of.

    Where its sources disagree, the one that contradicts the requested value is returned.
    """
    labels = {}
    for name, wanted in requested.items():
        reported = [label for label in sources.get(name, ()) if label is not None]
        if reported:
            differing = (label for label in reported if not same_value(label, wanted))
            labels[name] = next(differing, wanted)
    return labels


def same_value(reported: str, requested: str) -> bool:
    """Return whether two values are one: numbers that differ by their digits only are."""
    try:
        return math.isclose(float(reported), float(requested), rel_tol=1e-6)
    except ValueError:
        return reported == requested


def dtype_of(value: Any) -> str | None:
    """Return the name of a data type, as `torch.bfloat16` or `half`; None where not reported."""
    name = text_of(value)
    if name is None:
        return None
    bare = name.lower().rpartition(".")[2]
    return {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}.get(
        bare, bare
    )


def always(label: str | None) -> Reader[object]:
    """Return the reader of a toggle that has one label, or None, on every server of an engine."""
    return lambda *_: (label,)


def text_of(value: Any) -> str | None:
    """Return a reported value as text; None where it is not reported."""
    return None if value is None else str(value)


def switch(value: Any) -> str | None:
    """Return `on` or `off` for a bool, as data or as text; None for anything else."""
    return {"true": "on", "false": "off"}.get(str(value).lower())


def opposite(value: Any) -> str | None:
    """Return `off` where a bool that disables something is true, `on` where it is false."""
    return {"on": "off", "off": "on"}.get(switch(value) or "")


def batching_label(running_limit: int | None) -> str | None:
    """Return the label of batching for an engine without static batches."""
    return None if running_limit is None else "none" if running_limit == 1 else "continuous"


def backend_label(reported: Any, requested: ToggleValue) -> str | None:
    """Return the label of an attention backend: engines write the same one in either case."""
    same = str(reported).lower() == requested.kind.lower()
    return requested.kind if same and reported is not None else text_of(reported)


def speculation_label(kind: str, reported: Mapping[str, Any], requested: ToggleValue) -> str:
    """Return the label of speculation, with the reported values of the requested options."""
    options = tuple((name, reported.get(name) or "nothing") for name, _ in requested.options)
    return ToggleValue(kind, options).label
