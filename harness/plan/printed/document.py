"""A plan as a JSON document, for `harness plan --json` and `sweep.json`."""

from __future__ import annotations

from typing import Any

from harness import __version__
from harness.plan.demand import Demand
from harness.plan.planned import Plan, PlannedArm, labels
from harness.plan.shared_settings import baseline_settings


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values, without a time; the store adds the time of creation.

    `arms` are the names in the order of the sweep; `planned` are the runs in order, including
    skipped ones.
    """
    spec = plan.spec
    return {
        "name": spec.name,
        "file": spec.path.name,
        "model": spec.model,
        "hardware": {"gpu": spec.hardware.gpu, "count": spec.hardware.count},
        "seed": spec.seed,
        "design": spec.design,
        "cache": spec.cache,
        "history": spec.history,
        "blocks": spec.blocks,
        "slo": spec.slo.facts(),
        "max_failed_share": spec.max_failed_share,
        "price_per_gpu_hour": spec.price_per_gpu_hour,
        "harness_version": __version__,
        "arms": list(dict.fromkeys(arm.name for arm in plan.arms)),
        "engines": [_arm(arm) for arm in plan.arms],
        "capabilities": [one.facts() for one in plan.capabilities],
        "baselines": [one.facts() for one in baseline_settings(plan.arms)],
        "workloads": [
            {"name": choice.name, "kind": choice.kind, "description": choice.workload.describe()}
            for choice in spec.workloads
        ],
        "demands": [_demand(demand) for demand in plan.demands],
        "planned": [run.facts() for run in plan.runs],
        "notes": list(plan.notes),
        "estimate": _estimate(plan),
    }


def _arm(arm: PlannedArm) -> dict[str, Any]:
    settings = arm.settings
    return {
        "engine": arm.engine,
        "label": arm.label,
        "arm": arm.name,
        "engine_version": arm.engine_version,
        "engine_kind": arm.engine_kind,
        "launch_line": list(arm.launch_line),
        "gpus": arm.gpus,
        "request": settings.shape.facts(),
        "toggles": labels(settings.toggles),
        "flipped": {toggle: flip.facts() for toggle, flip in arm.flipped.items()},
        "max_model_len": settings.max_model_len,
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_num_seqs,
        "max_batched_tokens": settings.max_batched_tokens,
        "memory_utilization": settings.memory_utilization,
        "reason": arm.reason,
        "missing": None if arm.missing is None else str(arm.missing),
    }


def _demand(demand: Demand) -> dict[str, Any]:
    """Return the demand of one workload and load; in open loop the counts are expected values."""
    return {
        "workload": demand.workload,
        "load": demand.load.facts(),
        "load_name": demand.load.label,
        "conversations": demand.conversations,
        "requests": demand.requests,
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "shared_prompt_tokens": demand.shared_tokens,
        "measured_requests": demand.measured,
        "steady_window": demand.steady,
        "p99_reliable": demand.p99_reliable,
        "skipped": dict(demand.skipped),
        "warnings": demand.warnings(),
        "notes": list(demand.notes),
    }


def _estimate(plan: Plan) -> dict[str, float | None]:
    time = plan.expected
    if time is None:
        return {"engine_hours": None, "wall_hours": None}
    return {"engine_hours": time.engine_s / 3600, "wall_hours": time.wall_s / 3600}
