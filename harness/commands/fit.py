"""`harness fit`: step times fitted to the measured runs of a sweep, their error, and a profile."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.adapters import EngineError
from harness.adapters.embedded import StepProfile, profile_text
from harness.commands.plan import all_adapters, planned_sweep
from harness.experiment import RequestSets, predict
from harness.output import PlainConsole, printing
from harness.plan import Plan, PlannedRun, labels
from harness.prediction import (
    METRICS,
    HeldOutMetric,
    MeasuredRun,
    fitted_costs,
    fixed_toggles,
    held_out_metrics,
    measured_run,
    median_errors,
)
from harness.results import analysed_run
from harness.results.report import plain_table, print_within
from harness.results.store import StoredRun, StoreError, read_runs, read_sweep, write_text
from harness.sweep_file import SpecError

_WIDTH = 100
_NAMES = {
    "output_tokens_per_s": "output tok/s",
    "ttft_ms.p50": "TTFT p50 ms",
    "tpot_ms.p50": "TPOT p50 ms",
}


def fit(arguments: argparse.Namespace) -> int:
    """Fit, print costs and errors, write the profile; return 0."""
    folder = arguments.directory
    plan = _plan_again(folder, arguments.sweep)
    runs, left_out = _measured(folder, plan, arguments.engine)
    out = _new_file(arguments.out or folder / f"{runs[0].planned.arm.label}.profile.json")
    profile = _profile(runs)
    request_sets = RequestSets()
    unseen = held_out_metrics(
        runs, profile, lambda run, measured: predict(run, request_sets, measured)
    )
    profile = replace(profile, errors=median_errors(unseen))
    write_text(out, profile_text(profile))
    with printing():
        if arguments.json:
            document = {"profile": profile.facts(), "unseen": [asdict(one) for one in unseen]}
            sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
        else:
            _print(profile, unseen, left_out)
            sys.stdout.write(f"wrote {out}\n")
    return 0


def _new_file(out: Path) -> Path:
    """Return `out`; raises `StoreError` where it is there, before minutes went into fitting."""
    if out.exists():
        error = StoreError(f"{out}: exists already; a profile is never overwritten")
        error.add_note("name another file with --out")
        raise error
    return out


def _plan_again(folder: Path, named: Path | None) -> Plan:
    """Return the plan that the sweep was run from: by `named`, else by the text that it stored.

    Raises `StoreError` where it is another plan: what the file's variables stand for has changed.
    """
    sweep = read_sweep(folder)
    with TemporaryDirectory() as passing:
        path = named or Path(passing) / (sweep.file or "sweep.yaml")
        if named is None:
            path.write_text(sweep.sweep or "", encoding="utf-8")
        try:
            plan = planned_sweep(path, all_adapters())
        except SpecError as cause:
            raise SpecError(str(cause).replace(passing, str(folder))) from cause
    if not {run.key for run in plan.planned} & {run.key for run in sweep.planned}:
        error = StoreError(f"{folder}: its sweep file now plans other runs than were stored")
        error.add_note("set the variables in it as when it was run, or name the file with --sweep")
        raise error
    return plan


def _measured(folder: Path, plan: Plan, label: str | None) -> tuple[list[MeasuredRun], list[str]]:
    """Return the runs of one real engine that may be believed, and which were left out, why."""
    planned = {run.key: run for run in plan.planned}
    stored = [run for run in read_runs(folder) if run.manifest.key in planned]
    real = [run for run in stored if run.manifest.engine_kind != "simulated"]
    names = list(dict.fromkeys(run.manifest.label for run in real))
    if label is None and len(names) > 1:
        error = StoreError(f"{folder}: holds runs of {', '.join(names)}; one can be fitted")
        error.add_note("name it with --engine LABEL")
        raise error
    chosen = label or next(iter(names), None)
    of_it = [run for run in real if run.manifest.label == chosen]
    if not of_it:
        raise StoreError(f"{folder}: no run of a real engine{f' {label}' if label else ''}")
    left_out: list[str] = []
    seen = list(_believed(of_it, planned, left_out))
    if not seen:
        raise StoreError(f"{folder}: no run of {chosen} can be fitted to: {'; '.join(left_out)}")
    return seen, left_out


def _believed(
    runs: Sequence[StoredRun], planned: dict[str, PlannedRun], left_out: list[str]
) -> Iterator[MeasuredRun]:
    """Yield the runs that came out ok and whose step times are those of the baseline."""
    ok = []
    for run in runs:
        row = analysed_run(run).row
        if row.status == "ok":
            ok.append(measured_run(planned[run.manifest.key], run))
        else:
            left_out.append(f"{row.arm}: {row.status.upper()}: {row.reason}")
    fixed = fixed_toggles(ok) if ok else {}
    for one in ok:
        values = labels(one.planned.arm.settings.toggles)
        unlike = [name for name, value in fixed.items() if values.get(name) != value]
        if unlike:
            left_out.append(f"{one.planned.arm.name}: {', '.join(unlike)} changes step times")
        else:
            yield one


def _profile(runs: Sequence[MeasuredRun]) -> StepProfile:
    """Return the profile of these runs, its errors not known yet."""
    some = runs[0]
    settings, manifest = some.planned.arm.settings, some.stored.manifest
    kv_tokens, block_tokens = manifest.facts.kv_tokens, manifest.facts.block_size
    if not kv_tokens or not block_tokens:
        raise EngineError(f"{manifest.label} told nothing of its KV cache, which a fit needs")
    return StepProfile(
        engine=manifest.engine,
        engine_version=manifest.engine_version,
        model=settings.model,
        gpu=settings.gpu,
        gpu_count=settings.gpu_count,
        costs=fitted_costs([run.equations for run in runs]),
        kv_tokens=kv_tokens,
        block_tokens=block_tokens,
        fixed=fixed_toggles(runs),
        runs=len(runs),
    )


def _print(profile: StepProfile, unseen: Sequence[HeldOutMetric], left_out: Sequence[str]) -> None:
    console = PlainConsole()
    costs = profile.costs
    sys.stdout.write(
        f"{profile.sentence}\n"
        f"a step {costs.step_s * 1e3:.3g} ms, and {costs.sequence_s * 1e3:.3g} ms a sequence, "
        f"{costs.context_token_s * 1e9:.3g} ns a token of context,\n"
        f"{costs.prompt_s * 1e3:.3g} ms a prompt or part of one, "
        f"{costs.prompt_token_s * 1e6:.3g} µs a prompt token;\n"
        f"{costs.request_s * 1e3:.3g} ms a request before it is in the engine\n\n"
    )
    if unseen:
        heads = ("\narm", "\nworkload, load", *(f"{_NAMES[metric]}\nerror" for metric in METRICS))
        print_within(console, plain_table(heads, _rows(unseen), _WIDTH), _WIDTH)
        told = ", ".join(f"{_NAMES[name]} {share:.1%}" for name, share in profile.errors.items())
        sys.stdout.write(
            "error: of each cell's runs, predicted from the runs of all others; mean over blocks\n"
            f"median error on unseen runs: {told}\n"
        )
    else:
        sys.stdout.write("one cell alone: there is no other run to hold the fit against\n")
    for reason in dict.fromkeys(left_out):
        sys.stdout.write(f"left out: {reason}\n")


def _rows(unseen: Sequence[HeldOutMetric]) -> Iterator[tuple[str, ...]]:
    for cell in dict.fromkeys(one.cell for one in unseen):
        found = []
        for metric in METRICS:
            errors = [one.error for one in unseen if one.cell == cell and one.metric == metric]
            mean = sum(errors) / len(errors) if errors else None
            found.append("–" if mean is None else f"{'+' if mean > 0 else ''}{mean:.1%}")
        arm, workload, load = cell
        yield (arm, f"{workload}, {load}", *found)
