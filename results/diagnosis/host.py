"""The host: steps that take longer than the GPU's memory needs, with few sequences decoding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.diagnosis.stalls import gaps_beside_prefills
from harness.results.store import StepFloor
from harness.results.units import significant

_FEW_DECODING = 8  # more of them, and arithmetic and attention are no longer small beside weights

_MOST_BESIDE = 0.9  # of the gaps, beside prefills of others
_UNDISTURBED = 10  # percentile of the token gaps: prompts lengthen many of the others


class _Pace(NamedTuple):
    """A step of a run that no prefill lengthened, against its floor."""

    gap_ms: float
    floor_ms: float
    decoding: float  # sequences at once, on average


def launches(run: DiagnosedRun) -> Measured:
    """Measure how far steps without graphs, or without overlap, are from their floor."""
    off = _off(run)
    if off is None:
        return not_stored("whether CUDA graphs are on")
    return _against_floor(run, off) if off else NOTHING_TO_SEE


def far_from_floor(run: DiagnosedRun) -> Measured:
    """Measure how far steps are from their floor where graphs and overlap are on."""
    off = _off(run)
    if off is None:
        return not_stored("whether CUDA graphs are on")
    return NOTHING_TO_SEE if off else _against_floor(run, [])


def _off(run: DiagnosedRun) -> list[str] | None:
    """Return which of the two are off: by a counter of replayed steps, else by the toggles."""
    replayed, steps = run.counters.graph_steps, run.counters.steps
    graphs = run.toggle("cuda_graphs")
    if graphs is None and replayed is None:
        return None
    off = graphs == "off" or (replayed == 0 and bool(steps))
    names = ["cuda_graphs"] if off else []
    return names + ["overlap_scheduling"] * (run.toggle("overlap_scheduling") == "off")


def _against_floor(run: DiagnosedRun, off: list[str]) -> Measured:
    if run.counters.drafted_tokens:
        return NOTHING_TO_SEE  # a step then brings several tokens, and has drafts beside it
    floor = run.manifest.decode_floor
    gaps_ms, beside = gaps_beside_prefills(run)
    if not len(gaps_ms) or beside.mean() > _MOST_BESIDE:
        return NOTHING_TO_SEE  # no answer of two tokens, or hardly a gap that is only decoding
    if floor is None:
        return not_stored("the floor of a step (an unknown model or GPU)")
    pace = _pace(run, floor, float(np.percentile(gaps_ms, _UNDISTURBED)))
    if pace is None or pace.decoding > _FEW_DECODING:
        return NOTHING_TO_SEE
    ratio = pace.gap_ms / pace.floor_ms
    state = f"{' and '.join(off)} off" if off else "graphs and overlap are on"
    return Measured(
        value=ratio,
        evidence=f"a token gap (P10) is {significant(pace.gap_ms)} ms with "
        f"{pace.decoding:.1f} decoding at once, {significant(ratio, 2)} times the "
        f"{significant(pace.floor_ms)} ms that reading weights and KV takes; {state}",
        remedy=f"turn {' and '.join(off)} on"
        if off
        else "look at the host (its clock, other work on its cores, the tokenizer), use fewer GPUs "
        "for so small a model, or more users at once",
    )


def _pace(run: DiagnosedRun, floor: StepFloor, gap_ms: float) -> _Pace | None:
    """Return the pace of a run; None where no answer has a length in time."""
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
