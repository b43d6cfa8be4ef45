"""The rules for host overhead: decode steps far above the memory-bandwidth floor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.diagnosis.stalls import gaps_beside_prefills
from harness.results.store import StepFloor
from harness.results.units import significant

_FEW_DECODING = 8  # above it, arithmetic and attention add much to the time that weights take

_MOST_BESIDE = 0.9  # above this share of gaps beside prefills, the rule does not judge
_UNDISTURBED = 10  # percentile of the token gaps; prefills lengthen many of the longer ones


class _Pace(NamedTuple):
    """The time of a decode-only step and its floor."""

    gap_ms: float
    floor_ms: float
    decoding: float  # mean number of sequences that decode at once


def launches(run: DiagnosedRun) -> Measured:
    """Return step time ÷ floor if CUDA graphs or overlap scheduling is off."""
    off = _off(run)
    if off is None:
        return not_stored("the state of CUDA graphs (on or off)")
    return _against_floor(run, off) if off else NOTHING_TO_SEE


def far_from_floor(run: DiagnosedRun) -> Measured:
    """Return step time ÷ floor if CUDA graphs and overlap scheduling are both on."""
    off = _off(run)
    if off is None:
        return not_stored("the state of CUDA graphs (on or off)")
    return NOTHING_TO_SEE if off else _against_floor(run, [])


def _off(run: DiagnosedRun) -> list[str] | None:
    """Return which of CUDA graphs and overlap scheduling are off; None if it is unknown.

    A counter of steps replayed from a graph also shows that graphs are off.
    """
    replayed, steps = run.counters.graph_steps, run.counters.steps
    graphs = run.toggle("cuda_graphs")
    if graphs is None and replayed is None:
        return None
    off = graphs == "off" or (replayed == 0 and bool(steps))
    names = ["cuda_graphs"] if off else []
    return names + ["overlap_scheduling"] * (run.toggle("overlap_scheduling") == "off")


def _against_floor(run: DiagnosedRun, off: list[str]) -> Measured:
    if run.counters.drafted_tokens:
        return NOTHING_TO_SEE  # a step then drafts as well and produces several tokens
    floor = run.manifest.decode_floor
    gaps_ms, beside = gaps_beside_prefills(run)
    if not len(gaps_ms) or beside.mean() > _MOST_BESIDE:
        return NOTHING_TO_SEE  # too few gaps from steps that only decode
    if floor is None:
        return not_stored("the floor of a decode step (unknown model or GPU)")
    pace = _pace(run, floor, float(np.percentile(gaps_ms, _UNDISTURBED)))
    if pace is None or pace.decoding > _FEW_DECODING:
        return NOTHING_TO_SEE
    ratio = pace.gap_ms / pace.floor_ms
    state = f"{' and '.join(off)} off" if off else "graphs and overlap are on"
    return Measured(
        value=ratio,
        evidence=f"the token gap (P10) is {significant(pace.gap_ms)} ms with "
        f"{pace.decoding:.1f} sequences decoding at once, {significant(ratio, 2)} × the "
        f"{significant(pace.floor_ms)} ms needed to read weights and KV; {state}",
        remedy=f"turn {' and '.join(off)} on"
        if off
        else "check the host (clock speed, other processes on its cores, the tokenizer), use fewer "
        "GPUs for this model, or raise the concurrency",
    )


def _pace(run: DiagnosedRun, floor: StepFloor, gap_ms: float) -> _Pace | None:
    """Return the pace of a run; None if no answer lasts longer than its first token."""
    requests: pd.DataFrame = run.metrics.requests[run.metrics.requests["ok"]]
    spans_ns = requests["last_token_ns"] - requests["first_token_ns"]
    whole_ns = float(requests["last_token_ns"].max() - requests["first_token_ns"].min())
    total_ns = float(spans_ns.sum())
    if not whole_ns > 0 or not total_ns > 0:
        return None
    decoding = max(1.0, total_ns / whole_ns)
    lengths = requests["prompt_tokens"].fillna(0) + requests["output_tokens"] / 2
    context = float((lengths * spans_ns).sum()) / total_ns
    floor_s = floor.step_s + floor.context_token_s * decoding * context
    return _Pace(gap_ms, 1e3 * floor_s, decoding)
