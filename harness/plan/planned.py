"""The types of a plan: arms with their engine settings, and runs in order."""

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
    """One toggle of an arm that differs from the baseline."""

    value: ToggleValue
    base: ToggleValue
    implied: Mapping[str, ToggleValue]  # values that it requires and that differ from the baseline

    def facts(self) -> dict[str, Any]:
        """Return the flip as stored in manifests."""
        return {"value": self.value.label, "base": self.base.label, "implied": labels(self.implied)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """One arm on one engine."""

    name: str
    engine: str
    label: str  # name of the engine in results
    engine_version: str | None  # None: unknown before the run
    engine_kind: str | None  # real | measured | simulated | stand-in; None: unknown before the run
    settings: EngineSettings  # its toggles include implied values
    flipped: Mapping[str, Flip]  # empty for both baselines
    launch_line: tuple[str, ...]
    gpus: int | None  # GPUs of one engine; None: unknown for this server
    reason: str | None = None  # why the arm is skipped; None: it runs
    missing: EngineError | None = None  # error if its program is not installed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditions:
    """The conditions of a run other than its workload and load."""

    cache: str  # prefix cache at the start: cold | primed | steady | as found (not changed)
    workers: int | None  # load generator processes; None: as many as the load needs
    request_timeout_s: float | None  # time limit of a request; None: no limit
    max_failed_share: float  # share of requests that may fail in an ok run
    warmup_requests: int | None = None  # requests before the run; None: one per slot
    # KV block size for the prefix hit ceiling, if the engine does not report its own.
    assumed_block_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One workload under one load on one started arm."""

    key: str  # runs with the same key are the same run
    arm: PlannedArm
    block: int
    group: int | None  # number of the server start in the plan; None for a skipped run
    workload: AnyWorkload  # includes the lengths or the limit of the load
    workload_kind: str
    load: Load
    seed: int  # for requests and arrivals; the same for all arms of a block
    conditions: RunConditions
    expected: Expected | None = None  # None: the duration is unknown

    @property
    def status(self) -> Literal["planned", "skipped"]:
        """`planned`, or `skipped` if the arm has a reason."""
        return "planned" if self.arm.reason is None else "skipped"

    def facts(self) -> dict[str, Any]:
        """Return the facts of a run before it starts, as stored in manifests."""
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
        """Return the load, with the number of warm-up requests if it was given."""
        facts, requests = self.load.facts(), self.conditions.warmup_requests
        if requests is not None:
            del facts["warmup"]  # the window then includes the start of the run
            facts["warmup_requests"] = requests
        return facts


EMBEDDED = "embedded"  # its runs are simulated on virtual time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs of a sweep, in order. Runs of one group are adjacent and share a server start."""

    spec: SweepSpec
    arms: tuple[PlannedArm, ...]
    runs: tuple[PlannedRun, ...]
    demands: tuple[Demand, ...]  # one for each workload and load
    notes: tuple[str, ...]
    capabilities: tuple[Capability, ...] = ()  # every engine × toggle × value

    @property
    def planned(self) -> tuple[PlannedRun, ...]:
        """The runs that are not skipped."""
        return tuple(run for run in self.runs if run.status == "planned")

    @property
    def real_time(self) -> bool:
        """Whether a run uses real time; the embedded engine uses virtual time."""
        return any(run.arm.engine != EMBEDDED for run in self.planned)

    @property
    def starts(self) -> int:
        """The number of server starts."""
        return len({run.group for run in self.planned})

    def check_programs(self) -> None:
        """Raise `EngineError` if the program of a planned engine is not installed."""
        for run in self.planned:
            if run.arm.missing is not None:
                raise run.arm.missing

    @property
    def expected(self) -> Expected | None:
        """The duration of all runs together; None if the duration of one is unknown."""
        times = [run.expected for run in self.planned]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return Expected(
            engine_s=sum(time.engine_s for time in known), wall_s=sum(time.wall_s for time in known)
        )


def labels(toggles: Mapping[str, ToggleValue]) -> dict[str, str]:
    """Return toggle → label, as stored in results."""
    return {toggle: value.label for toggle, value in toggles.items()}
