"""What `summary.json` holds: the types that tables, plots, report and page are made from.

An absent value is None. `analysis` makes a summary; whoever shows it computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final

import pandas as pd
from pydantic import TypeAdapter

from harness.results.statistics import Distribution
from harness.results.store import (
    JSON_SCHEMA,
    CacheFacts,
    Evidence,
    HardwareFacts,
    LoadFacts,
    SloFacts,
    ToggleFlip,
    finite,
)

SCHEMA_VERSION = 2
Values = Mapping[str, int | float | None]  # metric, such as `ttft_ms.p50` → value


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValues:
    """The metrics of one run. A latency has the statistics of its requests or gaps."""

    ttft_ms: Distribution | None
    scheduled_ttft_ms: Distribution | None  # from when a request was due; open loop only
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    chunk_gap_ms: Distribution | None
    e2e_ms: Distribution | None
    scheduled_e2e_ms: Distribution | None
    tail_ms: Distribution | None
    send_delay_ms: Distribution | None
    slo_ttft_ms: Distribution | None  # a failed request takes for ever
    slo_e2e_ms: Distribution | None
    output_tokens_per_s: float | None
    output_tokens_per_s_whole_run: float | None
    output_tokens_per_s_per_user: float | None
    output_tokens_per_s_per_gpu: float | None
    total_tokens_per_s: float | None
    total_tokens_per_s_per_gpu: float | None
    requests_per_s: float | None
    requests_per_s_whole_run: float | None
    goodput_rps: float | None
    goodput_share: float | None
    prefix_hit_rate: float | None
    prefix_hit_ceiling: float | None
    clumped_share: float | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    completed: int
    preemptions: int | None
    cost_per_million_output_tokens: float | None
    failures: Mapping[str, int]  # kind of failure → requests of the whole run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning:
    """One reason to distrust a run."""

    name: str
    message: str  # what was found, with its number
    remedy: str  # what the user can do


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateReason:
    """One reason against a run's client, or why nothing is known of it."""

    name: str
    verdict: str | None  # DEGRADED | INVALID; None: only that something is not known
    message: str
    remedy: str | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedValue:
    """What was measured of a client for one limit, and the bounds of this run."""

    value: float | None  # None: not known
    unit: Literal["ms", "share"]
    degraded: float
    invalid: float | None  # None: this alone never makes a run INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Whether a run's client can be trusted."""

    verdict: str | None  # TRUSTED | DEGRADED | INVALID; None: no client, or its lag is not known
    reasons: tuple[CertificateReason, ...]  # the worst first
    measured: Mapping[str, CertifiedValue]  # by the name of the limit
    errors: Values  # metric → how far off the client may have set it, as a share


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """The measured window of a run, and what its rates are made from."""

    kind: Literal["steady", "whole-run"]
    start_s: float | None
    end_s: float | None
    reason: str | None  # of a whole run
    length_s: float | None
    requests_ended: int
    output_tokens: int | None
    prompt_tokens: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """The requests of a whole run, sent = ok + failed; the tokens of the answered ones."""

    sent: int
    measured: int  # those of the measured window
    ok: int
    failed: int
    prompt_tokens: int | None
    output_tokens: int | None
    duration_s: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoofShares:
    """The least times that the hardware allows, and these over the measured ones: 1 is the roof."""

    decode_step_ms: float
    decode_bound: str | None  # memory | compute
    prefill_ms: float
    prefill_bound: str | None
    decode: float | None
    prefill: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """What was predicted of a real engine's run, or why nothing was."""

    absent: str | None
    basis: str | None
    error_share: float | None
    errors: tuple[str, ...]
    values: Values | None  # of the same requests on the embedded engine
    roof: RoofShares | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of a sweep."""

    key: str
    arm: str
    block: int
    engine: str
    label: str
    workload: str
    load: LoadFacts
    seed: int | None
    engine_version: str | None
    engine_kind: str | None  # real | measured | simulated | stand-in
    toggles: Mapping[str, str]
    flipped: Mapping[str, ToggleFlip]
    evidence: Mapping[str, Evidence]
    gpus: int | None
    skipped_rows: Mapping[str, int]  # reason → rows of a trace that no request was made from
    notes: tuple[str, ...]
    cache: CacheFacts | None
    status: str  # ok | failed | void | invalid | interrupted | skipped
    reason: str | None
    certificate: Certificate
    metrics: MetricValues | None  # None: nothing was sent
    failure_samples: Mapping[str, str]
    warnings: tuple[RunWarning, ...]
    window: WindowFacts | None
    counts: RequestCounts | None
    prediction: RunPrediction | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysedRun:
    """A run's row beside what only the analysis uses."""

    row: RunRow
    metrics: Values
    predicted: Values  # every predicted metric; empty where none is
    clock: str | None
    assumptions: tuple[str, ...]  # of simulated times
    requests: pd.DataFrame | None  # latencies, `measured` and `ok` of each request


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One arm on one workload under one load, over its blocks."""

    engine: str
    label: str
    arm: str
    workload: str
    load: LoadFacts
    n_blocks: int  # that are ok
    status: str
    reason: str | None
    certificate: str | None  # the worst verdict
    gpus: int | None
    flipped: Mapping[str, ToggleFlip]
    metrics: Values  # means over the blocks
    predicted: Values | None  # of the primary metrics
    roof: RoofShares | None
    p99_reliable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One arm against its baseline on one metric."""

    engine: str
    label: str
    arm: str
    toggle: str
    value: str
    implied: Mapping[str, str]
    ratio_of: str  # "on/off": what is divided by what
    workload: str
    load: LoadFacts
    metric: str
    unit: str
    others_flipped: bool  # compared with the arm that has every other toggle flipped as well
    baseline: float | None
    treated: float | None
    ratio: float | None
    low: float | None  # of the 95 % interval over the blocks
    high: float | None
    p_adjusted: float | None
    n_blocks: int
    verdict: str | None  # BETTER | WORSE | NO DIFFERENCE | INCONCLUSIVE
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    outside: bool | None  # whether all of the interval lies outside the predicted band


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of a sweep."""

    schema_version: int
    name: str
    created: str
    model: str
    hardware: HardwareFacts
    seed: int
    file: str | None
    harness_version: str | None
    slo: SloFacts | None
    price_per_gpu_hour: float | None
    cache: str | None
    history: str | None
    simulated: bool
    stand_in: bool
    margin: float  # a ratio within it makes no difference
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    runs: tuple[RunRow, ...]
    arms: tuple[ArmRow, ...]
    effects: tuple[Effect, ...]

    def document(self) -> dict[str, Any]:
        """Return the summary as `summary.json` holds it."""
        return document_of(self)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def document_of(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON values; a number that is not finite becomes None."""
    kind: Any = type(value)
    document: dict[str, Any] = finite(_adapter(kind).dump_python(value, mode="json"))
    return document


def parsed_summary(document: Mapping[str, Any]) -> Summary:
    """Return a summary from the content of a `summary.json`; raise `ValueError` for another."""
    kind: Any = Summary
    summary: Summary = _adapter(kind).validate_python(document)
    return summary


def summary_schema() -> dict[str, Any]:
    """Return the JSON schema of `summary.json`."""
    schema = TypeAdapter(Summary).json_schema(mode="serialization")
    return {"$schema": JSON_SCHEMA, **schema}
