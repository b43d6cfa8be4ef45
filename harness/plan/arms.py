"""The arms of a sweep on one engine: settings, implied values, and reasons for skipped arms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.adapters import (
    AS_IT_IS,
    GPU_TOGGLES,
    EngineAdapter,
    EngineError,
    EngineSettings,
    Runtime,
    ToggleValue,
)
from harness.adapters.process import (
    MissingProgramError,
    hidden,
    secret_values,
    shown_words,
)
from harness.plan.planned import Flip, PlannedArm
from harness.sweep_file import CONTROLS, Arm, EngineChoice, Place, SweepSpec, arms_of

# Settings that have another name in the sweep file than in `EngineSettings`.
_ELSEWHERE: Mapping[str, tuple[Place, ...]] = {
    "model": (("model",),),
    "gpu": (("hardware", "gpu"),),
    "max_model_len": (("model",),),
    **dict.fromkeys(GPU_TOGGLES, (("hardware", "count"), ("hardware",))),
}


def engine_arms(
    spec: SweepSpec, choice: EngineChoice, adapter: EngineAdapter
) -> tuple[list[PlannedArm], list[str]]:
    """Return the arms of a sweep on one engine, and notes on changed values of the baseline.

    An arm has a reason if the engine does not support it, if it does not fit, or if an earlier arm
    has the same settings. Raises `EngineError` if the baseline cannot start. If the program of an
    engine is not installed, its arms are planned and contain the error.
    """
    choice, missing = plannable(spec, choice, adapter)
    requested = settings_of(spec, choice, spec.baseline)
    baseline = with_implied(adapter, requested)
    _check_baseline(spec, choice, adapter, baseline)
    arms: list[PlannedArm] = []
    for arm in arms_of(spec.design, spec.toggles):
        settings = with_implied(adapter, settings_of(spec, choice, {**spec.baseline, **arm.values}))
        arms.append(
            PlannedArm(
                name=arm.name,
                engine=choice.engine,
                label=choice.label,
                engine_version=adapter.version_of(settings),
                engine_kind=adapter.engine_kind,
                settings=settings,
                flipped=_flips(adapter, requested, baseline, arm),
                launch_line=tuple(shown_words(adapter.launch_line(settings))),
                gpus=settings.gpus,
                reason=_reason(adapter, settings, arm, arms),
                missing=missing,
            )
        )
    return arms, list(_baseline_notes(choice, adapter, requested, baseline))


def plannable(
    spec: SweepSpec, choice: EngineChoice, adapter: EngineAdapter
) -> tuple[EngineChoice, EngineError | None]:
    """Return a choice that can be planned, and the error that a run would raise, or None.

    A program that is not installed is planned by its command, without a version.
    """
    settings = settings_of(spec, choice, spec.baseline)
    try:
        adapter.version_of(settings)
    except MissingProgramError as error:
        missing = _located(spec, choice, error, secret_values(settings))
        if choice.runtime is not None and choice.runtime.docker is not None:
            return replace(choice, runtime=replace(choice.runtime, here=False)), missing
        return replace(choice, runtime=Runtime(command=error.words, here=False)), missing
    return choice, None


def settings_of(
    spec: SweepSpec, choice: EngineChoice, toggles: Mapping[str, ToggleValue]
) -> EngineSettings:
    """Return the settings of an engine of the sweep with these values of all toggles."""
    return EngineSettings(
        model=choice.model or spec.model,
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
        trust_remote_code=spec.trust_remote_code,
        url=choice.url,
        api_key_env=choice.api_key_env,
        model_check=choice.model_check,
        metrics_urls=choice.metrics_urls,
        shape=choice.shape,
        step_profile=choice.profile,
    )


def with_implied(adapter: EngineAdapter, settings: EngineSettings) -> EngineSettings:
    """Return the settings with all implied values."""
    return replace(settings, toggles={**settings.toggles, **adapter.implied(settings)})


def _check_baseline(
    spec: SweepSpec, choice: EngineChoice, adapter: EngineAdapter, settings: EngineSettings
) -> None:
    try:
        adapter.check(settings)
    except EngineError as error:
        raise _located(spec, choice, error, secret_values(settings)) from None


def _located(
    spec: SweepSpec, choice: EngineChoice, error: EngineError, secrets: frozenset[str]
) -> EngineError:
    """Return an error of the baseline with the line of the sweep file to change."""
    place = spec.where(*_places(spec, choice, error.about))
    message = f"{place}{choice.label}: the baseline cannot start: {error}"
    located = EngineError(hidden(message, secrets))
    for note in getattr(error, "__notes__", []):
        located.add_note(hidden(note, secrets))
    return located


def _places(spec: SweepSpec, choice: EngineChoice, about: str | None) -> list[Place]:
    """Return the places in the file that may set the refused value, the most likely first."""
    engine: Place = ("engines", [one.label for one in spec.engines].index(choice.label))
    if about is None:
        return [engine, ("engines",)]
    flipped = [place for place in spec.lines if place[0:1] == ("toggles",) and place[-1] == about]
    return [("base", about), *flipped, *_ELSEWHERE.get(about, ()), engine, ("engines",)]


def _flips(
    adapter: EngineAdapter, requested: EngineSettings, baseline: EngineSettings, arm: Arm
) -> dict[str, Flip]:
    """Return the flips of an arm, each with the values that it alone implies."""
    flips = {}
    for toggle, value in arm.values.items():
        alone = replace(requested, toggles={**requested.toggles, toggle: value})
        implied = {
            name: other
            for name, other in adapter.implied(alone).items()
            if other != baseline.toggles[name]
        }
        flips[toggle] = Flip(value=value, base=baseline.toggles[toggle], implied=implied)
    return flips


def _reason(
    adapter: EngineAdapter, settings: EngineSettings, arm: Arm, before: Sequence[PlannedArm]
) -> str | None:
    """Return why an arm is skipped: it cannot run, or repeats another arm; None if it runs."""
    if arm.name in CONTROLS:
        return None
    try:
        adapter.check(settings)
    except EngineError as error:
        reason = "; ".join([str(error), *getattr(error, "__notes__", [])])
        return str(hidden(reason, secret_values(settings)))
    reasons = adapter.reasons(settings)
    if AS_IT_IS in settings.toggles.values():
        return "; ".join(dict.fromkeys(reasons[toggle] for toggle in arm.values))
    overruled = [
        f"{toggle} stays {settings.toggles[toggle].label}"
        + (f": {reasons[toggle]}" if toggle in reasons else "")
        for toggle, value in arm.values.items()
        if settings.toggles[toggle] != value
    ]
    for other in before:
        if other.settings.toggles == settings.toggles:
            return "; ".join([f"has the same settings as {other.name}", *overruled])
    return None


def _baseline_notes(
    choice: EngineChoice,
    adapter: EngineAdapter,
    requested: EngineSettings,
    baseline: EngineSettings,
) -> Iterator[str]:
    reasons = adapter.reasons(requested)
    if AS_IT_IS in baseline.toggles.values():
        yield (
            f"{choice.label}: the harness did not start this server, so it sets no toggle and does "
            "not empty the cache"
        )
        return
    for toggle, value in requested.toggles.items():
        if baseline.toggles[toggle] != value:
            yield (
                f"{choice.label}: the baseline's {toggle} is {baseline.toggles[toggle].label}, "
                f"not {value.label}: {reasons.get(toggle, 'its other values require it')}"
            )
