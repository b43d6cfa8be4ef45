"""The sweep file as a typed, checked, frozen `SweepSpec`. The one door: `load_sweep`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.adapters import AS_MADE, RequestShape, Runtime, ToggleValue
from harness.adapters.process import environment_folder
from harness.sweep_file.designs import design_fault
from harness.sweep_file.form import (
    ATTACHED,
    LISTS,
    MOST_LETTERS,
    Engine,
    Lists,
    RuntimeForm,
    SweepForm,
    validated,
)
from harness.sweep_file.lists import Traffic, WorkloadChoice, read_traffic
from harness.sweep_file.load import Load
from harness.sweep_file.problems import Place, Problem, line_of, spec_error, written
from harness.sweep_file.toggles import (
    ToggleChoice,
    Toggles,
    baseline_of,
    read_toggles,
    without_toggles,
)
from harness.sweep_file.yaml_source import Source, read_source

_START_TIMEOUT_NS = 900 * 10**9  # a large model loads for minutes
_ATTACH_TIMEOUT_NS = 30 * 10**9  # one that runs already answers, or does not
Design = Literal["one-at-a-time", "leave-one-out", "pairs", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of the machine."""

    gpu: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine of the sweep, and what results call it."""

    engine: str
    label: str
    runtime: Runtime | None = None  # None: the adapter looks for its program itself
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = _START_TIMEOUT_NS / 1e9
    url: str | None = None  # of a server that runs already, the only one that has the next two
    model: str | None = None  # what requests call it; None: as the sweep does
    api_key_env: str | None = None  # the variable that holds its key
    metrics_urls: tuple[str, ...] = ()  # of its replicas, whose counters are added up
    model_check: bool = True  # whether it must list or answer the model's name
    shape: RequestShape = AS_MADE  # what the user sets of every request
    profile: Mapping[str, Any] | None = None  # fitted step times, by which it is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits that a good answer keeps, in nanoseconds; None where there is no limit."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None

    def facts(self) -> dict[str, float | None]:
        """Return the limits in milliseconds, as manifests and summaries hold them."""
        limits = {"ttft_ms": self.ttft_ns, "tpot_ms": self.tpot_ns, "e2e_ms": self.e2e_ns}
        return {name: None if ns is None else ns / 1e6 for name, ns in limits.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A sweep as its author meant it; everything is checked and nothing is absent by accident."""

    path: Path
    name: str
    model: str
    hardware: Hardware
    engines: tuple[EngineChoice, ...]
    dtype: str
    max_model_len: int  # prompt plus output of a request at most, in tokens
    max_num_seqs: int
    max_batched_tokens: int
    memory_utilization: float
    trust_remote_code: bool  # whether code that comes with the model may run
    baseline: Mapping[str, ToggleValue]  # every toggle
    toggles: tuple[ToggleChoice, ...]
    design: Design
    workloads: tuple[WorkloadChoice, ...]
    loads: tuple[Load, ...]
    pairs: tuple[tuple[WorkloadChoice, Load], ...]  # which load goes with which workload
    cache: str  # cold | primed | steady
    blocks: int
    workers: int | None  # load generator processes; None: as many as the load needs
    request_timeout_s: float  # until a request's answer must have ended
    slo: Slo
    max_failed_share: float
    price_per_gpu_hour: float | None
    seed: int
    notes: tuple[str, ...]  # what the file requests and does not get, with the reason
    lines: Mapping[Place, int]  # where each value of the file stands

    @property
    def history(self) -> str:
        """Return whose answers stand in the chats' later prompts: recorded | live."""
        return "live" if any(choice.history == "live" for choice in self.workloads) else "recorded"

    def where(self, *places: Place) -> str:
        """Return file, line and name of the first of `places` that the file has, for an error."""
        place = next((place for place in places if place in self.lines), ())
        name = f"{written(place)}: " if place else ""
        return f"{self.path}: line {line_of(place, self.lines)}: {name}"


def load_sweep(
    path: Path,
    *,
    engines: Collection[str] = ("embedded",),
    environment: Mapping[str, str] | None = None,
) -> SweepSpec:
    """Return the sweep that a file describes.

    `engines` are the names of those that can be run. `${VARIABLES}` are filled from `environment`,
    the process's own where it is None. Raises one `SpecError` that names every problem of the file.
    """
    source = read_source(path, os.environ if environment is None else environment)
    problems: list[Problem] = []
    toggles = read_toggles(source.data, problems)
    context = {"folder": path.parent, "engines": tuple(engines)}
    form, lists = _validated(without_toggles(source.data), context, problems)
    traffic = read_traffic(lists, problems)
    if form is not None and (fault := design_fault(form.design, toggles.choices)):
        problems.append(Problem(("design",), fault))
    if problems or form is None:
        raise spec_error(str(path), problems, source.lines)
    return _spec(source, form, toggles, traffic)


def _validated(
    data: dict[str, Any], context: dict[str, Any], problems: list[Problem]
) -> tuple[SweepForm | None, SweepForm | Lists]:
    """Return the whole form, None when something is wrong with it; and the lists that are right."""
    form, found = validated(SweepForm, data, context=context)
    if form is not None:
        return form, form
    problems.extend(found)
    wrong = {problem.place[0] for problem in found if problem.place}
    right = {key: data[key] for key in LISTS if key in data and key not in wrong}
    return None, Lists.model_validate(right, context=context)


def _name_of(path: Path) -> str:
    """Return the name of a sweep that gives itself none: that of its file, as far as it may be."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:MOST_LETTERS] or "sweep"


def _engine_choice(form: Engine, folder: Path, *, cpu: bool) -> EngineChoice:
    usual_ns = _ATTACH_TIMEOUT_NS if form.engine == ATTACHED else _START_TIMEOUT_NS
    return EngineChoice(
        engine=form.engine,
        label=form.label or form.engine,
        runtime=None if form.runtime is None else _runtime(form, form.runtime, folder, cpu=cpu),
        extra_args=form.extra_args or (),
        env=form.env or {},
        start_timeout_s=(form.start_timeout or usual_ns) / 1e9,
        url=form.url,
        model=form.model,
        api_key_env=form.api_key_env,
        metrics_urls=form.metrics_urls or (),
        model_check=form.model_check is not False,
        shape=RequestShape(
            api=form.api or "completions",
            body=form.request or {},
            headers=form.headers or {},
            lora=form.lora or {},
            verify_tls=True if form.verify_tls is None else form.verify_tls,
        ),
        profile=None if form.profile is None else form.profile.facts(),
    )


def _runtime(engine: Engine, form: RuntimeForm, folder: Path, *, cpu: bool) -> Runtime:
    """Return where the program is; a path is looked for beside the sweep file first."""

    def found(text: str | None) -> Path | None:
        if text is None:
            return None
        beside = folder / Path(text).expanduser()
        return (beside if beside.exists() else Path(text).expanduser()).absolute()

    if form.version is not None:
        return Runtime(venv=environment_folder(engine.engine, form.version, cpu=cpu))
    return Runtime(
        path=found(form.path),
        venv=found(form.venv),
        command=form.command or (),
        docker=form.docker,
    )


def _model(named: str, folder: Path) -> str:
    """Return the model's name, or where its files lie; looked for beside the sweep file first."""
    for path in (folder / Path(named).expanduser(), Path(named).expanduser()):
        is_config = path.suffix == ".json" and os.path.isfile(path)  # noqa: PTH113  of any length
        if is_config or os.path.isfile(path / "config.json"):  # noqa: PTH113
            return str(path.absolute())
    return named


def _spec(source: Source, form: SweepForm, toggles: Toggles, traffic: Traffic) -> SweepSpec:
    base, hardware = form.base, Hardware(gpu=form.hardware.gpu, count=form.hardware.count)
    return SweepSpec(
        path=source.path,
        name=form.name or _name_of(source.path),
        model=_model(form.model, source.path.parent),
        hardware=hardware,
        engines=tuple(
            _engine_choice(choice, source.path.parent, cpu=hardware.gpu.lower() == "cpu")
            for choice in form.engines
        ),
        dtype=base.dtype,
        max_model_len=base.max_model_len,
        max_num_seqs=base.max_num_seqs,
        max_batched_tokens=base.max_batched_tokens,
        memory_utilization=base.memory_utilization,
        trust_remote_code=base.trust_remote_code,
        baseline=baseline_of(toggles, hardware.count),
        toggles=toggles.choices,
        design=form.design,
        workloads=traffic.workloads,
        loads=traffic.loads,
        pairs=traffic.pairs,
        cache=form.cache,
        blocks=form.blocks,
        workers=form.workers,
        request_timeout_s=form.request_timeout / 1e9,
        slo=Slo(ttft_ns=form.slo.ttft, tpot_ns=form.slo.tpot, e2e_ns=form.slo.e2e),
        max_failed_share=form.max_failed_share,
        price_per_gpu_hour=form.price_per_gpu_hour,
        seed=form.seed,
        notes=traffic.notes,
        lines=source.lines,
    )
