"""A part of a plan: the runs that a pattern names, and the baselines that their ratios need."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from harness.plan.planned import Plan, PlannedRun
from harness.sweep_file import CONTROLS, Load, SpecError


def select(plan: Plan, pattern: str) -> Plan:
    """Return the plan of the runs that `pattern` names, in the same order.

    A pattern matches the name of an arm, a workload, a load or an engine; with slashes in it, all
    four at once, as in `embedded/prefix_caching=off/chat/concurrency=*`. The baseline and the
    baseline again stay for each workload and load that is left. Raises `SpecError` for a pattern
    that matches nothing that can run.
    """
    chosen = [run for run in plan.runs if _matches(run, pattern)]
    if not chosen:
        raise _matches_nothing(plan, pattern)
    if all(run.status == "skipped" for run in chosen):
        reasons = dict.fromkeys(f"{run.arm.name}: {run.arm.reason}" for run in chosen)
        raise SpecError(f"--only {pattern!r} matches skipped runs only; {'; '.join(reasons)}")
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
