"""Selection of runs by a pattern, with the baselines that their ratios need."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from harness.plan.planned import Plan, PlannedRun
from harness.sweep_file import CONTROLS, Load, SpecError


def select(plan: Plan, pattern: str) -> Plan:
    """Return the plan with only the runs that match `pattern`, in the same order.

    A pattern matches the name of an arm, a workload, a load or an engine. A pattern with slashes
    matches all four, as in `embedded/prefix_caching=off/chat/concurrency=*`. Both baselines stay
    for each remaining workload and load. Raises `SpecError` if no run matches, or only skipped
    runs.
    """
    chosen = [run for run in plan.runs if _matches(run, pattern)]
    if not chosen:
        raise _matches_nothing(plan, pattern)
    if all(run.status == "skipped" for run in chosen):
        reasons = dict.fromkeys(f"{run.arm.name}: {run.arm.reason}" for run in chosen)
        raise SpecError(f"--only {pattern!r} matches only skipped runs; {'; '.join(reasons)}")
    beside = {_place(run) for run in chosen if run.arm.name not in CONTROLS}
    keys = {run.key for run in chosen}
    runs = tuple(
        run
        for run in plan.runs
        if run.key in keys or (run.arm.name in CONTROLS and _place(run) in beside)
    )
    return replace(
        plan,
        runs=runs,
        arms=tuple(arm for arm in plan.arms if any(run.arm is arm for run in runs)),
        demands=tuple(
            demand
            for demand in plan.demands
            if any((run.workload.name, run.load) == (demand.workload, demand.load) for run in runs)
        ),
    )


def _names(run: PlannedRun) -> tuple[str, ...]:
    return (run.arm.label, run.arm.name, run.workload.name, run.load.label)


def _matches(run: PlannedRun, pattern: str) -> bool:
    if "/" in pattern:
        return fnmatchcase("/".join(_names(run)), pattern)
    return any(fnmatchcase(name, pattern) for name in _names(run))


def _place(run: PlannedRun) -> tuple[str, str, Load, int]:
    return run.arm.label, run.workload.name, run.load, run.block


def _matches_nothing(plan: Plan, pattern: str) -> SpecError:
    error = SpecError(f"--only {pattern!r} matches no run of {plan.spec.path}")
    kinds = zip(
        ("engines", "arms", "workloads", "loads"),
        zip(*map(_names, plan.runs), strict=True),
        strict=True,
    )
    for kind, names in kinds:
        error.add_note(f"{kind}: {', '.join(sorted(set(names)))}")
    return error
