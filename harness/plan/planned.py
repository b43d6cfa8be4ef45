"""What a plan is made of: arms with their engine settings, and runs in the order they will go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.adapters import EngineError, EngineSettings, ToggleValue
from harness.plan.capability import Capability
from harness.plan.demand import Demand
from harness.plan.estimate import Expected
from harness.sweep_file import AnyWorkload, Load, SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One toggle of an arm that is not as in the baseline."""

    value: ToggleValue
    base: ToggleValue
    implied: Mapping[str, ToggleValue]  # what the value drags along, where the baseline differs

    def facts(self) -> dict[str, Any]:
        """Return the flip as manifests hold it."""
        return {"value": self.value.label, "base": self.base.label, "implied": labels(self.implied)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """One arm on one engine."""

    name: str
    engine: str
    label: str  # what results call the engine
    engine_version: str | None  # None: known only when it runs
    engine_kind: str | None  # real | measured | simulated | stand-in; None: as above
    settings: EngineSettings  # what is implied is already in its toggles
    flipped: Mapping[str, Flip]  # empty for the baseline and the baseline again
    launch_line: tuple[str, ...]
    gpus: int | None  # GPUs that one engine takes; None: not known of this server
    reason: str | None = None  # why it cannot run; None: it can
    missing: EngineError | None = None  # that its program is not on this machine, which a run needs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditions:
    """How a run is measured, beside its workload and its load."""

    cache: str  # prefix cache when it starts: cold | primed | steady | as found (left as it is)
    workers: int | None  # load generator processes; None: as many as the load needs
    request_timeout_s: float | None  # until a request's answer must have ended; None: no limit
    max_failed_share: float  # requests that may fail in a run that is ok
    warmup_requests: int | None = None  # sent before the run; None: one for each slot
    # KV block size for the prefix hit ceiling, where the engine does not report its own.
    assumed_block_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One workload under one load on one started arm."""

    key: str  # names the run for good: the same key is the same run
    arm: PlannedArm
    block: int
    group: int | None  # number of the server start in the plan; None for a skipped run
    workload: AnyWorkload  # with the lengths or the limit of the load
    workload_kind: str
    load: Load
    seed: int  # of requests and arrivals; the same for all arms of a block
    conditions: RunConditions
    expected: Expected | None = None  # None: not known how long it takes

    @property
    def status(self) -> Literal["planned", "skipped"]:
        """Whether the run will be started."""
        return "planned" if self.arm.reason is None else "skipped"

    def facts(self) -> dict[str, Any]:
        """Return what is known of a run before it starts, as manifests hold it."""
        arm = self.arm
        return {
            "key": self.key,
            "arm": arm.name,
            "block": self.block,
            "group": self.group,
            "engine": arm.engine,
            "label": arm.label,
            "engine_version": arm.engine_version,
            "engine_kind": arm.engine_kind,
            "gpus": arm.gpus,
            "toggles": labels(arm.settings.toggles),
            "flipped": {toggle: flip.facts() for toggle, flip in arm.flipped.items()},
            "workload": self.workload.name,
            "workload_kind": self.workload_kind,
            "request": arm.settings.shape.facts(),
            "load": self._load_facts(),
            "seed": self.seed,
            "status": self.status,
            "reason": arm.reason,
        }

    def _load_facts(self) -> dict[str, Any]:
        """Return the load; where the number of warm-up requests was given, that too."""
        facts, requests = self.load.facts(), self.conditions.warmup_requests
        if requests is not None:
            del facts["warmup"]  # no part of the run itself is left out of its window
            facts["warmup_requests"] = requests
        return facts


EMBEDDED = "embedded"  # its runs are played on virtual time, and are predictions themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs of a sweep, in order. Runs of one group stand together and share a server start."""

    spec: SweepSpec
    arms: tuple[PlannedArm, ...]
    runs: tuple[PlannedRun, ...]
    demands: tuple[Demand, ...]  # one for each workload under each load
    notes: tuple[str, ...]
    capabilities: tuple[Capability, ...] = ()  # every engine × toggle × value

    @property
    def planned(self) -> tuple[PlannedRun, ...]:
        """Return the runs that will be started."""
        return tuple(run for run in self.runs if run.status == "planned")

    @property
    def real_time(self) -> bool:
        """Whether any run is measured on the real clock: the embedded engine's is virtual."""
        return any(run.arm.engine != EMBEDDED for run in self.planned)

    @property
    def starts(self) -> int:
        """Return how many servers will be started."""
        return len({run.group for run in self.planned})

    def check_programs(self) -> None:
        """Raise `EngineError` for an engine that is to run and whose program is not here."""
        for run in self.planned:
            if run.arm.missing is not None:
                raise run.arm.missing

    @property
    def expected(self) -> Expected | None:
        """Return how long all runs take together; None when that of one is not known."""
        times = [run.expected for run in self.planned]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return Expected(
            engine_s=sum(time.engine_s for time in known), wall_s=sum(time.wall_s for time in known)
        )


def labels(toggles: Mapping[str, ToggleValue]) -> dict[str, str]:
    """Return toggle values as the strings that results store."""
    return {toggle: value.label for toggle, value in toggles.items()}
