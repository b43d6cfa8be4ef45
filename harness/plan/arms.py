"""The arms of a sweep on one engine: settings, what they imply, and those that cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from adapters.base import EngineAdapter, EngineError, EngineSettings, ToggleValue
from harness.plan.planned import Flip, PlannedArm
from harness.spec import EngineChoice, SweepSpec
from harness.spec.designs import CONTROLS, Arm, arms_of
from harness.spec.problems import Place

# What stands in the file under another name than in `EngineSettings`, or is given by another key.
_ELSEWHERE: Mapping[str, tuple[Place, ...]] = {
    "model": (("model",),),
    "gpu": (("hardware", "gpu"),),
    "max_model_len": (("model",),),
    "tensor_parallel": (("hardware", "count"), ("hardware",)),
}


def engine_arms(
    spec: SweepSpec, choice: EngineChoice, adapter: EngineAdapter
) -> tuple[list[PlannedArm], list[str]]:
    """Return the arms of a sweep on one engine, and notes on a baseline that is not as asked.

    An arm that the engine cannot follow or that does not fit has the reason; so has one whose
    settings are those of an arm before. Raises `EngineError` when the baseline cannot start.
    """
    asked = _settings(spec, choice, spec.baseline)
    baseline = _with_implied(adapter, asked)
    _check_baseline(spec, choice, adapter, baseline)
    arms: list[PlannedArm] = []
    for arm in arms_of(spec.design, spec.toggles):
        settings = _with_implied(adapter, _settings(spec, choice, {**spec.baseline, **arm.values}))
        arms.append(
            PlannedArm(
                name=arm.name,
                engine=choice.engine,
                label=choice.label,
                engine_version=adapter.version_of(settings),
                engine_kind=adapter.engine_kind,
                settings=settings,
                flipped=_flips(adapter, asked, baseline, arm),
                launch_line=tuple(adapter.launch_line(settings)),
                gpus=int(settings.toggles["tensor_parallel"].kind),
                reason=_reason(adapter, settings, arm, arms),
            )
        )
    return arms, list(_baseline_notes(choice, adapter, asked, baseline))


def _settings(
    spec: SweepSpec, choice: EngineChoice, toggles: Mapping[str, ToggleValue]
) -> EngineSettings:
    return EngineSettings(
        model=spec.model,
        gpu=spec.hardware.gpu,
        gpu_count=spec.hardware.count,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        toggles=dict(toggles),
        max_num_seqs=spec.max_num_seqs,
        max_batched_tokens=spec.max_batched_tokens,
        memory_utilization=spec.memory_utilization,
        extra_args=choice.extra_args,
        env=choice.env,
        runtime=choice.runtime,
        start_timeout_s=choice.start_timeout_s,
    )


def _with_implied(adapter: EngineAdapter, settings: EngineSettings) -> EngineSettings:
    return replace(settings, toggles={**settings.toggles, **adapter.implied(settings)})


def _check_baseline(
    spec: SweepSpec, choice: EngineChoice, adapter: EngineAdapter, settings: EngineSettings
) -> None:
    try:
        adapter.check(settings)
    except EngineError as error:
        place = spec.where(*_places(spec, choice, error.about))
        unstartable = EngineError(f"{place}{choice.label}: the baseline cannot start: {error}")
        for note in getattr(error, "__notes__", []):
            unstartable.add_note(note)
        raise unstartable from error


def _places(spec: SweepSpec, choice: EngineChoice, about: str | None) -> list[Place]:
    """Return where the file may set what an engine refuses, the likeliest first."""
    engine: Place = ("engines", spec.engines.index(choice))
    if about is None:
        return [engine, ("engines",)]
    flipped = [place for place in spec.lines if place[0:1] == ("toggles",) and place[-1] == about]
    return [("base", about), *flipped, *_ELSEWHERE.get(about, ()), engine, ("engines",)]


def _flips(
    adapter: EngineAdapter, asked: EngineSettings, baseline: EngineSettings, arm: Arm
) -> dict[str, Flip]:
    """Return the flips of an arm, each with what it alone drags along."""
    flips = {}
    for toggle, value in arm.values.items():
        alone = replace(asked, toggles={**asked.toggles, toggle: value})
        implied = {
            name: dragged
            for name, dragged in adapter.implied(alone).items()
            if dragged != baseline.toggles[name]
        }
        flips[toggle] = Flip(value=value, base=baseline.toggles[toggle], implied=implied)
    return flips


def _reason(
    adapter: EngineAdapter, settings: EngineSettings, arm: Arm, before: Sequence[PlannedArm]
) -> str | None:
    """Return why an arm cannot run or would measure nothing new; None when it can."""
    if arm.name in CONTROLS:
        return None
    try:
        adapter.check(settings)
    except EngineError as error:
        return "; ".join([str(error), *getattr(error, "__notes__", [])])
    reasons = adapter.reasons(settings)
    overruled = [
        f"{toggle} is {settings.toggles[toggle].label} all the same"
        + (f": {reasons[toggle]}" if toggle in reasons else "")
        for toggle, value in arm.values.items()
        if settings.toggles[toggle] != value
    ]
    for other in before:
        if other.settings.toggles == settings.toggles:
            return "; ".join([f"would be the same engine as {other.name}", *overruled])
    return None


def _baseline_notes(
    choice: EngineChoice, adapter: EngineAdapter, asked: EngineSettings, baseline: EngineSettings
) -> Iterator[str]:
    reasons = adapter.reasons(asked)
    for toggle, value in asked.toggles.items():
        if baseline.toggles[toggle] != value:
            yield (
                f"{choice.label}: the baseline's {toggle} is {baseline.toggles[toggle].label}, "
                f"not {value.label}: {reasons.get(toggle, 'its other values imply it')}"
            )
