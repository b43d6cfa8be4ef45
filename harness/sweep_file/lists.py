"""Workloads and loads of a sweep file, built and checked against each other."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of

from harness.sweep_file.form import (
    AnyLoad,
    ClosedForm,
    EmpiricalLengths,
    Gamma,
    LengthsForm,
    Lists,
    LognormalLengths,
    MultiTurnForm,
    RateForm,
    SharedPrefixForm,
    SweepForm,
    TraceForm,
    UniformLengths,
    WorkloadForm,
)
from harness.sweep_file.load import Load
from harness.sweep_file.problems import Problem, did_you_mean
from harness.workloads import (
    Empirical,
    Fixed,
    Lengths,
    Lognormal,
    MultiTurn,
    SharedPrefix,
    Uniform,
    WorkloadError,
)
from harness.workloads.trace import TraceReplay, guess_format

AnyWorkload = SharedPrefix | MultiTurn | TraceReplay

_LENGTH_KEYS = (
    "prefix_tokens", "suffix_tokens", "system_tokens", "first_tokens", "turn_tokens",
    "output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """A workload of a sweep."""

    kind: str
    workload: AnyWorkload
    identity: str  # everything that its draws depend on, as JSON; files by their content

    @property
    def name(self) -> str:
        """The name that results store."""
        return self.workload.name

    @property
    def history(self) -> str:
        """Return what stands in later prompts: recorded answers, or live the server's own."""
        return self.workload.history if isinstance(self.workload, MultiTurn) else "recorded"

    def under(self, load: Load) -> AnyWorkload:
        """Return the workload under `load`: with its answers' length, or its limit.

        Raises `WorkloadError` for lengths that the workload cannot take.
        """
        workload = self.workload
        if isinstance(workload, TraceReplay):
            return workload if load.limit is None else replace(workload, limit=load.limit)
        if load.output_tokens is None:
            return workload
        return replace(workload, output_tokens=load.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The workloads and loads of a sweep, and which of them go together."""

    workloads: tuple[WorkloadChoice, ...]
    loads: tuple[Load, ...]
    pairs: tuple[tuple[WorkloadChoice, Load], ...]  # in the order of the file
    notes: tuple[str, ...]  # pairs that were left out, and why


def read_traffic(forms: SweepForm | Lists, problems: list[Problem]) -> Traffic:
    """Build the workloads and loads of the file; what is wrong is added to `problems`."""
    _check_names(forms, problems)
    _check_histories(forms, problems)
    built_workloads = [_workload(i, form, problems) for i, form in enumerate(forms.workloads)]
    built_loads = [_load(i, form, problems) for i, form in enumerate(forms.load)]
    workloads = tuple(choice for choice in built_workloads if choice is not None)
    loads = tuple(load for load in built_loads if load is not None)
    pairs: tuple[tuple[WorkloadChoice, Load], ...] = ()
    notes: tuple[str, ...] = ()
    loads = _with_full_labels(loads)
    if len(workloads) == len(forms.workloads) > 0 and len(loads) == len(forms.load) > 0:
        pairs, notes = _pairs(workloads, loads, problems)
    return Traffic(workloads=workloads, loads=loads, pairs=pairs, notes=notes)


def _with_full_labels(loads: tuple[Load, ...]) -> tuple[Load, ...]:
    """Return the loads, those of one short name with more in it."""
    short = Counter(load.label for load in loads)
    return tuple(replace(load, full_label=short[load.label] > 1) for load in loads)


def _check_names(forms: SweepForm | Lists, problems: list[Problem]) -> None:
    labels = [form.label or form.engine for form in forms.engines]
    names = [form.name for form in forms.workloads]
    for section, key, given in (("engines", "label", labels), ("workloads", "name", names)):
        for index, name in enumerate(given):
            first = given.index(name)
            if first < index:
                message = f"'{name}' is the {key} of {section}[{first}] too; give each its own"
                problems.append(Problem((section, index), message))


def _check_histories(forms: SweepForm | Lists, problems: list[Problem]) -> None:
    """Refuse chats of both histories in one sweep: its figures would be of two kinds."""
    chats = {
        index: form.history
        for index, form in enumerate(forms.workloads)
        if isinstance(form, MultiTurnForm)
    }
    first = next(iter(chats), None)
    for index, history in chats.items():
        if first is not None and history != chats[first]:
            message = f"{history}, but workloads[{first}] has {chats[first]}; a sweep has one"
            problems.append(Problem(("workloads", index, "history"), message))


def _workload(index: int, form: WorkloadForm, problems: list[Problem]) -> WorkloadChoice | None:
    lengths, wrong = _all_lengths(index, form)
    if wrong:
        problems.extend(wrong)
        return None
    try:
        if isinstance(form, TraceForm):
            workload: AnyWorkload = _trace(form)
        elif isinstance(form, MultiTurnForm):
            workload = _multi_turn(form, lengths)
        else:
            workload = _shared_prefix(form, lengths)
    except WorkloadError as error:
        problems.append(Problem(("workloads", index), _with_notes(error)))
        return None
    return WorkloadChoice(kind=form.kind, workload=workload, identity=_identity(workload))


def _trace(form: TraceForm) -> TraceReplay:
    return TraceReplay(
        name=form.name,
        format=guess_format(form.path) if form.format == "auto" else form.format,
        path=form.path,
        block_tokens=form.block_tokens,
        time_unit=form.time_unit,
        over_length=form.over_length,
        bad_rows=form.bad_rows,
    )


def _multi_turn(form: MultiTurnForm, lengths: Mapping[str, Lengths]) -> MultiTurn:
    return MultiTurn(
        name=form.name,
        turns=form.turns,
        first_tokens=lengths["first_tokens"],
        turn_tokens=lengths["turn_tokens"],
        output_tokens=lengths["output_tokens"],
        think_time_ns=form.think_time,
        system_tokens=lengths.get("system_tokens"),
        history=form.history,
    )


def _shared_prefix(form: SharedPrefixForm, lengths: Mapping[str, Lengths]) -> SharedPrefix:
    return SharedPrefix(
        name=form.name,
        prefix_tokens=lengths["prefix_tokens"],
        suffix_tokens=lengths["suffix_tokens"],
        output_tokens=lengths["output_tokens"],
        groups=form.groups,
    )


def _all_lengths(index: int, form: WorkloadForm) -> tuple[dict[str, Lengths], list[Problem]]:
    """Return the length distributions of a workload by their keys, and those that are none."""
    found: dict[str, Lengths] = {}
    problems: list[Problem] = []
    for key in () if isinstance(form, TraceForm) else _LENGTH_KEYS:
        length = getattr(form, key, None)
        try:
            found |= {} if length is None else {key: _lengths(length)}
        except WorkloadError as error:
            problems.append(Problem(("workloads", index, key), _with_notes(error)))
    return found, problems


def _lengths(form: LengthsForm) -> Lengths:
    if isinstance(form, UniformLengths):
        return Uniform(form.uniform.low, form.uniform.high)
    if isinstance(form, LognormalLengths):
        figures = form.lognormal
        return Lognormal(figures.median, figures.p99, figures.low, figures.high)
    if isinstance(form, EmpiricalLengths):
        return Empirical.from_file(form.empirical, form.column)
    return Fixed(form)


def _identity(workload: AnyWorkload) -> str:
    """Return what the draws of a workload depend on; a file that moved stays the same file."""
    if not isinstance(workload, TraceReplay):
        return repr(workload)  # frozen dataclasses of numbers: their text is their value
    content = hashlib.sha256(workload.path.read_bytes()).hexdigest()
    options = {item.name: getattr(workload, item.name) for item in fields_of(workload)}
    return repr({**options, "path": content})


def _load(index: int, form: AnyLoad, problems: list[Problem]) -> Load | None:
    try:
        output = None if form.output_tokens is None else _lengths(form.output_tokens)
    except WorkloadError as error:
        problems.append(Problem(("load", index, "output_tokens"), _with_notes(error)))
        return None
    if isinstance(form, ClosedForm):
        return Load(
            mode="concurrency",
            arrivals="closed",
            concurrency=form.concurrency,
            requests=form.requests,
            output_tokens=output,
            workloads=form.workloads,
        )
    if isinstance(form, RateForm):
        gamma = form.arrivals if isinstance(form.arrivals, Gamma) else None
        return Load(
            mode="rate",
            arrivals="gamma" if isinstance(form.arrivals, Gamma) else form.arrivals,
            rate_rps=form.rate,
            duration_ns=form.duration,
            gamma_cv=gamma.gamma.cv if gamma else None,
            max_concurrency=form.max_concurrency,
            output_tokens=output,
            workloads=form.workloads,
        )
    return Load(
        mode="trace",
        arrivals="trace",
        limit=form.limit,
        speedup=form.speedup,
        max_concurrency=form.max_concurrency,
        output_tokens=output,
        workloads=form.workloads,
    )


def _pairs(
    workloads: tuple[WorkloadChoice, ...], loads: tuple[Load, ...], problems: list[Problem]
) -> tuple[tuple[tuple[WorkloadChoice, Load], ...], tuple[str, ...]]:
    """Return the pairs that go together, in the order of workloads, and notes on the others."""
    chosen: list[list[WorkloadChoice]] = []
    notes = []
    for index, load in enumerate(loads):
        wanted = _wanted(index, load, workloads, problems)
        suited = [choice for choice in wanted if _suits(load, choice)]
        others = [choice.name for choice in wanted if not _suits(load, choice)]
        if others and (load.workloads is not None or not suited):
            message = f"arrivals: trace needs a workload of kind trace; {_are(others)} none"
            problems.append(Problem(("load", index), message))
        elif others:
            notes.append(f"load {load.label} is for traces only: not run with {', '.join(others)}")
        _check_answers(index, load, suited, problems)
        chosen.append(suited)
    _check_labels(loads, chosen, problems)
    for index, choice in enumerate(workloads):
        if not any(choice in suited for suited in chosen):
            problems.append(Problem(("workloads", index), f"no load is for '{choice.name}'"))
    pairs = tuple(
        (choice, load)
        for choice in workloads
        for load, suited in zip(loads, chosen, strict=True)
        if choice in suited
    )
    return pairs, tuple(notes)


def _wanted(
    index: int, load: Load, workloads: tuple[WorkloadChoice, ...], problems: list[Problem]
) -> list[WorkloadChoice]:
    names = [choice.name for choice in workloads]
    for position, name in enumerate(load.workloads or ()):
        if name not in names:
            message = f"there is no workload '{name}'{did_you_mean(name, names)}"
            problems.append(Problem(("load", index, "workloads", position), message))
    return [choice for choice in workloads if choice.name in (load.workloads or names)]


def _suits(load: Load, choice: WorkloadChoice) -> bool:
    return load.mode != "trace" or choice.kind == "trace"


def _check_answers(
    index: int, load: Load, suited: Iterable[WorkloadChoice], problems: list[Problem]
) -> None:
    """Refuse answer lengths where a trace brings its own, or the workload cannot take them."""
    if load.output_tokens is None:
        return
    place = ("load", index, "output_tokens")
    for choice in suited:
        if choice.kind == "trace":
            message = f"the trace '{choice.name}' has its own answer lengths; name this load's "
            problems.append(Problem(place, f"{message}`workloads` without it"))
            continue
        try:
            choice.under(load)
        except WorkloadError as error:
            problems.append(Problem(place, _with_notes(error)))


def _check_labels(
    loads: tuple[Load, ...], chosen: list[list[WorkloadChoice]], problems: list[Problem]
) -> None:
    """Refuse two loads of one label for one workload: their results would have one name."""
    for index, load in enumerate(loads):
        for before in range(index):
            shared = [choice.name for choice in chosen[index] if choice in chosen[before]]
            if load.label == loads[before].label and shared:
                message = f"{load.label} is load[{before}] again for {', '.join(shared)}"
                problems.append(Problem(("load", index), f"{message}; keep one"))
                break


def _are(names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    return f"{listed} {'is' if len(names) == 1 else 'are'}"


def _with_notes(error: WorkloadError) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", [])])
