"""A plan as text: server starts, requests, skipped runs, notes and the estimated duration."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from harness.plan.demand import Demand
from harness.plan.planned import Plan, PlannedArm, labels
from harness.plan.printed.capability import (
    NOT_SHARED,
    READING,
    capability_rows,
    settings_rows,
)
from harness.plan.printed.launch_lines import launch_difference, launch_lines
from harness.plan.shared_settings import baseline_settings
from harness.results import count

WIDTH = 100


def print_plan(plan: Plan, console: Console) -> None:
    """Print a plan in lines of at most 100 columns."""
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH

    def show(lines: Iterable[str], style: str = "") -> None:
        for line in lines:
            for part in _wrapped(line, width):
                console.print(Text(part, style=style), soft_wrap=True)

    def table(content: Table) -> None:
        # A console that is not a terminal assumes 80 columns.
        options = console.options.update(width=width)
        console.print(Segments(console.render(content, options)), soft_wrap=True, end="")

    show(_heading(plan), style="bold")
    show(_setting(plan))
    for label in dict.fromkeys(arm.label for arm in plan.arms):
        arms = [arm for arm in plan.arms if arm.label == label]
        show(["", f"{label} starts {count(len(_running(arms)), 'arm')} in each block:"])
        table(_arm_table(arms))
        command, *options = launch_lines(arms[0].launch_line)
        show([f"  baseline: {command}", *(f"    {line}" for line in options)], style="dim")
        show(_requests(arms[0]), style="dim")
        show(_missing(arms[0]), style="yellow")
    show(["", "Supported toggle values, with all else as in the baseline:"])
    matrix, footnotes = capability_rows(plan.capabilities)
    table(_words_table(matrix))
    show([READING, *footnotes], style="dim")
    if len(plan.spec.engines) > 1:
        show(["", "Settings of the baselines:"])
        settings = baseline_settings(plan.arms)
        table(_words_table(settings_rows(settings)))
        show([NOT_SHARED] if any(not one.shared for one in settings) else [], style="dim")
    show(["", "Workloads and loads of each start, in this order:"])
    show(f"  {choice.workload.describe()}" for choice in plan.spec.workloads)
    table(_demand_table(plan.demands))
    show(_warnings(plan.demands), style="yellow")
    show(["", *_order(plan)])
    show(_skipped(plan), style="yellow")
    show(f"note: {note}" for note in _notes(plan))
    show(["", *_estimate(plan)])


def _heading(plan: Plan) -> list[str]:
    blocks = len({run.block for run in plan.runs})
    arms = len({run.arm.name for run in plan.planned})
    workloads = len({demand.workload for demand in plan.demands})
    loads = len({demand.load for demand in plan.demands})
    traffic = f"{count(workloads, 'workload')} × {count(loads, 'load')}"
    if workloads * loads != len(plan.demands):
        traffic = f"{len(plan.demands)} pairs of workload and load"
    runs, starts = count(len(plan.planned), "run"), count(plan.starts, "server start")
    parts = f"{count(arms, 'arm')} × {traffic} × {count(blocks, 'block')}"
    return [f"{plan.spec.name}: {runs} = {parts}; {starts}"]


def _setting(plan: Plan) -> list[str]:
    spec = plan.spec
    kinds = {arm.label: arm.engine_kind for arm in plan.arms}
    engines = ", ".join(f"{name} ({kind})" if kind else name for name, kind in kinds.items())
    return [
        f"{spec.model} on {_gpus(plan)} × {spec.hardware.gpu}; engine: {engines}",
        f"design {spec.design}, cache {spec.cache}, seed {spec.seed}; a plan starts nothing",
    ]


def _gpus(plan: Plan) -> str:
    """Return the GPUs that the baselines use, which may be fewer than the machine has."""
    return " or ".join(
        str(gpus) for gpus in dict.fromkeys(arm.gpus for arm in plan.arms if not arm.flipped)
    )


def _running(arms: Iterable[PlannedArm]) -> list[PlannedArm]:
    return [arm for arm in arms if arm.reason is None]


def _table(heads: Sequence[tuple[str, JustifyMethod]], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without empty columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        table.add_column(heads[i][0], justify=heads[i][1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[i]) for i in kept))
    return table


def _words_table(rows: Sequence[Sequence[str]]) -> Table:
    """Return a left-aligned table; the first row is the header."""
    return _table([(head, "left") for head in rows[0]], rows[1:])


def _requests(arm: PlannedArm) -> Iterator[str]:
    if shape := arm.settings.shape.describe():
        yield f"  every request: {shape}"
    yield from (f"  {note}" for note in arm.settings.shape.notes())


def _missing(arm: PlannedArm) -> Iterator[str]:
    if arm.missing is not None:
        why = str(arm.missing).partition("cannot start: ")[2]
        yield f"  not found on this machine: {why}; install it before a run (version unknown)"


def _arm_table(arms: list[PlannedArm]) -> Table:
    heads: list[tuple[str, JustifyMethod]] = [
        ("arm", "left"),
        ("baseline", "left"),
        ("implies", "left"),
        ("GPUs", "right"),
        ("launch line change", "left"),
    ]
    return _table(heads, [_arm_row(arm, arms[0]) for arm in arms])


def _arm_row(arm: PlannedArm, baseline: PlannedArm) -> tuple[str, ...]:
    implied: dict[str, str] = {}
    for flip in arm.flipped.values():
        implied |= labels(flip.implied)
    return (
        arm.name,
        ", ".join(flip.base.label for flip in arm.flipped.values()),
        _pairs(implied),
        str(arm.gpus),
        _launch_difference(arm, baseline) if arm.reason is None else "(skipped, see below)",
    )


def _launch_difference(arm: PlannedArm, baseline: PlannedArm) -> str:
    """Return the difference of a launch line, without words that only repeat the flip."""
    known = {_pairs({name: label}) for name, label in labels(arm.settings.toggles).items()}
    known |= {_pairs({name: label}) for name, label in labels(baseline.settings.toggles).items()}
    return launch_difference(arm.launch_line, baseline.launch_line, known)


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={label}" for name, label in values.items())


def _demand_table(demands: tuple[Demand, ...]) -> Table:
    heads: list[tuple[str, JustifyMethod]] = [
        ("workload", "left"),
        ("load", "left"),
        ("requests", "right"),
        ("prompt\ntokens", "right"),
        ("output\ntokens", "right"),
        ("shared\nprefix", "right"),
        ("P99\nsamples", "right"),
    ]
    return _table(heads, [_demand_row(demand) for demand in demands])


def _demand_row(demand: Demand) -> tuple[str, ...]:
    each = max(1, demand.requests)
    return (
        demand.workload,
        demand.load.describe(),
        f"{demand.requests:,}",
        f"{demand.prompt_tokens / each:,.0f}",
        f"{demand.output_tokens / each:,.0f}",
        f"{demand.shared_tokens / max(1, demand.prompt_tokens):.0%}",
        f"{demand.measured:,}" + ("" if demand.p99_reliable else " (few)"),
    )


def _warnings(demands: tuple[Demand, ...]) -> Iterator[str]:
    for demand in demands:
        for warning in demand.warnings():
            yield f"  {demand.workload}, {demand.load.label}: {warning}"


def _order(plan: Plan) -> Iterator[str]:
    """Yield the order of server starts, block by block."""
    several = len({arm.label for arm in plan.arms}) > 1
    yield "Order of server starts (random, by the seed):"
    for block in sorted({run.block for run in plan.planned}):
        starts = {
            run.group: f"{run.arm.label}: {run.arm.name}" if several else run.arm.name
            for run in plan.planned
            if run.block == block
        }
        yield f"  block {block}: {' · '.join(starts.values())}"


def _skipped(plan: Plan) -> Iterator[str]:
    skipped = [arm for arm in plan.arms if arm.reason is not None]
    if skipped:
        yield ""
    for arm in skipped:
        yield f"skipped: {arm.label}: {arm.name}: {arm.reason}"


def _notes(plan: Plan) -> list[str]:
    """Return each note once: notes of the plan, and what the workloads leave out."""
    notes = list(plan.notes)
    for demand in plan.demands:
        left_out = ", ".join(f"{number:,} {reason}" for reason, number in demand.skipped.items())
        notes += [f"{demand.workload}: left out: {left_out}"] if left_out else []
        notes += [f"{demand.workload}: {note}" for note in demand.notes]
    return list(dict.fromkeys(notes))


def _estimate(plan: Plan) -> list[str]:
    time = plan.expected
    if time is None:
        return ["estimate: unknown, because the speed of an engine is unknown"]
    wall = f"about {_time(time.wall_s)}"
    if all(arm.engine_kind == "simulated" for arm in plan.arms):
        return [f"estimate: about {_time(time.engine_s)} of simulated time, which takes {wall}"]
    return [f"estimate: {wall}"]


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line, and indent the continuation lines."""
    indent = " " * (len(line) - len(line.lstrip()))
    lines = textwrap.wrap(line, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
    return lines or [""]
