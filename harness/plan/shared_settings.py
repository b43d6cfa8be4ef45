"""The settings of the baselines of all engines, equal and different ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.adapters.process import shown_words
from harness.plan.planned import PlannedArm, labels


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSetting:
    """One setting of the baselines of all engines."""

    name: str
    values: Mapping[str, str]  # engine label → value; empty: not set

    @property
    def shared(self) -> bool:
        """Whether all engines have the same value."""
        return len(set(self.values.values())) == 1

    def facts(self) -> dict[str, Any]:
        """Return the setting as JSON values."""
        return {"setting": self.name, "values": dict(self.values), "shared": self.shared}


def baseline_settings(arms: Sequence[PlannedArm]) -> list[BaselineSetting]:
    """Return the effective settings of each engine's baseline: limits, then toggles.

    They include implied values, the engine's extra arguments and the names of its environment
    variables.
    """
    baselines: dict[str, PlannedArm] = {}
    for arm in arms:
        baselines.setdefault(arm.label, arm)  # the baseline comes first
    by_engine = {label: dict(_settings(arm)) for label, arm in baselines.items()}
    names = dict.fromkeys(name for settings in by_engine.values() for name in settings)
    found = [
        BaselineSetting(
            name=name, values={label: settings[name] for label, settings in by_engine.items()}
        )
        for name in names
    ]
    return [setting for setting in found if any(setting.values.values())]


def _settings(arm: PlannedArm) -> Iterator[tuple[str, str]]:
    settings = arm.settings
    yield "model", settings.model
    yield "GPUs", f"{arm.gpus} x {settings.gpu}"
    yield "dtype", settings.dtype
    for name in ("max_model_len", "max_num_seqs", "max_batched_tokens", "memory_utilization"):
        yield name, f"{getattr(settings, name)}"
    yield from labels(settings.toggles).items()
    yield "extra_args", " ".join(shown_words(settings.extra_args))
    yield "requests", settings.shape.describe()
    yield "env", " ".join(sorted(settings.env))  # names only: values may be secret
