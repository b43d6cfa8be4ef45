"""Construction of the plan of a sweep: every run, in order.

Pure: the same sweep, files and adapters give the same plan.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.adapters import AS_IT_IS, EngineAdapter
from harness.load import steady_seed
from harness.plan.arms import engine_arms, plannable, settings_of
from harness.plan.capability import Capability, capabilities
from harness.plan.demand import Demand, check_starts, demand_of
from harness.plan.estimate import expected, with_cache_setup
from harness.plan.planned import Plan, PlannedArm, PlannedRun, RunConditions, labels
from harness.results.store import FORMAT
from harness.sweep_file import CONTROL_ARM, Load, SweepSpec, WorkloadChoice
from harness.workloads import WorkloadError

_SEED_BITS = 53  # every JSON reader keeps an integer of this size exact


def make_plan(spec: SweepSpec, adapters: Mapping[str, EngineAdapter]) -> Plan:
    """Return the plan of a sweep; `adapters` maps each engine of the sweep to its adapter.

    In each block every arm of every engine starts once, in random order, and runs all workloads and
    loads. Raises `EngineError` if a baseline cannot start, and `WorkloadError` if a workload has no
    requests.
    """
    arms, notes = _arms(spec, adapters)
    demands = [_demand(spec, choice, load) for choice, load in spec.pairs]
    runs = tuple(_runs(spec, adapters, arms, demands))
    return Plan(
        spec=spec,
        arms=tuple(arms),
        runs=runs,
        demands=tuple(demands),
        notes=(*spec.notes, *notes),
        capabilities=tuple(_capabilities(spec, adapters)),
    )


def _capabilities(spec: SweepSpec, adapters: Mapping[str, EngineAdapter]) -> Iterator[Capability]:
    values = {choice.name: choice.values for choice in spec.toggles}
    for configured in spec.engines:
        adapter = adapters[configured.engine]
        choice, _ = plannable(spec, configured, adapter)
        baseline = settings_of(spec, choice, spec.baseline)
        yield from capabilities(choice.label, adapter, baseline, values)


def _demand(spec: SweepSpec, choice: WorkloadChoice, load: Load) -> Demand:
    """Return the demand of one workload under one load, checked for every block."""
    seeds = [_seed(spec, choice, load, block) for block in range(spec.blocks)]
    try:
        demand = demand_of(choice, load, seed=seeds[0], max_model_len=spec.max_model_len)
        others = [steady_seed(seed, 0) for seed in seeds] if spec.cache == "steady" else []
        check_starts(demand, [*seeds, *others])
    except WorkloadError as error:
        place = spec.where(("workloads", spec.workloads.index(choice)), ("workloads",))
        located = WorkloadError(f"{place}{error}")
        for note in getattr(error, "__notes__", []):
            located.add_note(note)
        raise located from error
    return demand


def _arms(
    spec: SweepSpec, adapters: Mapping[str, EngineAdapter]
) -> tuple[list[PlannedArm], list[str]]:
    arms, notes = [], []
    for choice in spec.engines:
        engine, remarks = engine_arms(spec, choice, adapters[choice.engine])
        arms += engine
        notes += remarks
    return arms, notes


def _runs(
    spec: SweepSpec,
    adapters: Mapping[str, EngineAdapter],
    arms: Sequence[PlannedArm],
    demands: Sequence[Demand],
) -> Iterator[PlannedRun]:
    """Yield the runs by block, then by server start, then by workload and load as in the file."""
    group, conditions = 0, _conditions(spec)
    for block in range(spec.blocks):
        for arm in _order(spec, arms, block):
            started = arm.reason is None
            for (choice, load), demand in zip(spec.pairs, demands, strict=True):
                seed = _arm_seed(spec, arm, choice, load, block)
                simulated = arm.engine_kind == "simulated"
                yield PlannedRun(
                    key=_key(arm, block, choice, load, seed, spec.cache),
                    arm=arm,
                    block=block,
                    group=group if started else None,
                    workload=choice.under(load),
                    workload_kind=choice.kind,
                    load=load,
                    seed=seed,
                    conditions=conditions,
                    expected=with_cache_setup(
                        expected(adapters[arm.engine], arm.settings, demand, simulated=simulated),
                        spec.cache,
                    )
                    if started
                    else None,
                )
            group += started


def _conditions(spec: SweepSpec) -> RunConditions:
    return RunConditions(
        cache=spec.cache,
        workers=spec.workers,
        request_timeout_s=spec.request_timeout_s,
        max_failed_share=spec.max_failed_share,
    )


def _order(spec: SweepSpec, arms: Sequence[PlannedArm], block: int) -> list[PlannedArm]:
    """Return the arms of a block in the random order of their starts; skipped arms are last.

    The order is random so that drift or warming of the machine does not look like an effect.
    """
    order = [arm for arm in arms if arm.reason is None]
    random.Random(_number("order", spec.seed, block)).shuffle(order)
    return order + [arm for arm in arms if arm.reason is not None]


def _seed(spec: SweepSpec, choice: WorkloadChoice, load: Load, block: int) -> int:
    """Return the seed of a run: equal for all arms of a block, new for each block and load."""
    return _number("draws", spec.seed, choice.identity, load.identity(), block)


def _arm_seed(
    spec: SweepSpec, arm: PlannedArm, choice: WorkloadChoice, load: Load, block: int
) -> int:
    """Return the seed of an arm's run, which is the seed of its block.

    Only the second baseline on a server that is not restarted has another seed, because the first
    baseline left its prompts in the prefix cache.
    """
    seed = _seed(spec, choice, load, block)
    if arm.name == CONTROL_ARM and AS_IT_IS in arm.settings.toggles.values():
        return _number("again", seed)
    return seed


def _key(
    arm: PlannedArm, block: int, choice: WorkloadChoice, load: Load, seed: int, cache: str
) -> str:
    """Return the key of a run: a hash of everything that its records depend on."""
    settings = arm.settings
    started_as: dict[str, Any] = {
        "label": arm.label,
        "arm": arm.name,
        "line": arm.launch_line,
        "env": dict(settings.env),
        "version": arm.engine_version,
        "model": [settings.model, settings.gpu, settings.gpu_count, settings.dtype],
        "limits": [
            settings.max_model_len,
            settings.max_num_seqs,
            settings.max_batched_tokens,
            settings.memory_utilization,
        ],
        "toggles": labels(settings.toggles),
    }
    if request := settings.shape.facts():  # left out if empty, so that older keys stay valid
        started_as["request"] = request
    return _digest(
        "run",
        started_as,
        block,
        choice.identity,
        load.identity(),
        seed,
        cache,
        choice.history,
        FORMAT,
    )


def _number(*parts: Any) -> int:
    return int(_digest(*parts), 16) & (1 << _SEED_BITS) - 1


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
