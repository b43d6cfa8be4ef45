"""The types of `manifest.json` and `sweep.json`, checked when they are written and read.

An absent value is None. Integers stay integers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from harness.results.store.client_facts import ClientFacts
from harness.results.store.manifest_part import ManifestPart, Number

FORMAT: Literal[1] = 1
Document = TypeVar("Document", bound=BaseModel)
JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_NAMED = 3  # problems of a document that the error lists


class LoadFacts(ManifestPart):
    """The load of a run: concurrency, request rate or trace."""

    mode: Literal["concurrency", "rate", "trace"]
    value: Number | None = None  # concurrency, or conversations per second; None for a trace
    requests: int | None = None
    duration_s: float | None = None
    arrivals: str | None = None
    gamma_cv: float | None = None
    max_concurrency: int | None = None
    limit: int | None = None  # rows of a trace
    speedup: float | None = None
    output_tokens: str | None = None
    warmup: Number | None = None  # seconds of an open loop that are left out of rates
    warmup_requests: int | None = None  # sent before the measured ones

    @model_validator(mode="after")
    def _has_its_value(self) -> Self:
        if self.value is None and self.mode != "trace":
            raise ValueError(f"the mode {self.mode} needs a value")
        return self

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are due at scheduled times, not when a slot becomes free."""
        return self.mode != "concurrency"

    @property
    def concurrency(self) -> int:
        """The number of slots of a closed loop."""
        return int(self.value or 0)  # the validator requires a value in closed loop


class HardwareFacts(ManifestPart):
    """The GPUs that a sweep file names."""

    gpu: str
    count: int | None  # None: unknown, for a server that the harness did not start


class ToggleFlip(ManifestPart):
    """One toggle in which an arm differs from its baseline, as labels."""

    value: str
    base: str
    implied: Mapping[str, str] = {}  # toggle → the value that this one requires


class Evidence(ManifestPart):
    """One toggle or base setting of a run: requested, reported, and shown by a counter."""

    requested: str
    effective: str | None
    observed: Number | None
    verdict: Literal["verified", "contradicted", "not exercised", "unverifiable"]


class CounterMoves(ManifestPart):
    """Increase of the server's counters during the run; None: not counted."""

    prompt_tokens: Number | None = None
    cached_prompt_tokens: Number | None = None
    looked_up_prompt_tokens: Number | None = None
    output_tokens: Number | None = None
    drafted_tokens: Number | None = None
    accepted_tokens: Number | None = None
    verify_steps: Number | None = None
    preemptions: Number | None = None
    swapped_tokens: Number | None = None
    steps: Number | None = None
    sequence_steps: Number | None = None
    graph_steps: Number | None = None
    split_prefills: Number | None = None
    split_prefills_at_least: Number | None = None
    partial_prefill_steps: Number | None = None
    mixed_steps: Number | None = None
    late_admissions: Number | None = None
    peak_running: Number | None = None  # a gauge: its value at the end
    evicted_blocks: Number | None = None
    queued_ns: Number | None = None


class CacheExcess(ManifestPart):
    """A request with more cached tokens than it shares with earlier requests."""

    request_id: str
    cached_tokens: int
    limit_tokens: int


class CacheFacts(ManifestPart):
    """The state of the prefix cache at the start of a run, and its check by the answers."""

    state: str  # cold | primed | steady
    salted: bool | None = None
    answers_checked: int | None = None
    answers_over_limit: int | None = None
    worst: CacheExcess | None = None
    primed_prefixes: int | None = None
    primed_tokens: int | None = None
    requests_before: int | None = None
    tokens_before: int | None = None
    turned_over: bool | None = None


class PromptFacts(ManifestPart):
    """Prompt tokens as sent and as the server counted them."""

    form: str  # ids | completions | chat
    requests: int
    sent_tokens: int
    counted_tokens: int
    untold: int  # answers whose prompt tokens the server did not count
    differing: int


class PromptOverlap(ManifestPart):
    """How far prompts repeat earlier ones of the run."""

    prompt_tokens: int
    shared_tokens: int
    hidden_tokens: int  # repeated, but after the first unique token
    diverge_after_tokens: float  # median


class StepFloor(ManifestPart):
    """The minimum time of a decode step: reading the weights, and the KV of each context token."""

    step_s: float
    context_token_s: float


class RoofFacts(ManifestPart):
    """The minimum step times of a run by memory bandwidth and arithmetic."""

    decode_step_s: float
    decode_bound: str | None = None
    prefill_s: float
    prefill_bound: str | None = None
    running: float | None = None
    context_tokens: float | None = None
    new_prompt_tokens: int | None = None


class PredictionFacts(ManifestPart):
    """The basis and the error of a prediction, or the reason for its absence."""

    absent: str | None = None
    basis: str | None = None
    error_share: float | None = None
    errors: tuple[str, ...] = ()
    roof: RoofFacts | None = None


class EngineFacts(ManifestPart):
    """Facts that an engine reports about itself; each engine adds fields of its own."""

    model_config = ConfigDict(extra="allow", strict=False)  # servers format numbers differently

    kv_tokens: int | None = None
    block_size: int | None = None
    running_limit: int | None = None
    max_model_len: int | None = None
    assumptions: tuple[str, ...] = ()  # behind simulated times
    accuracy: tuple[str, ...] = ()  # known errors of simulated times


class WarmUpFacts(ManifestPart):
    """The requests before a run."""

    ramp_ns: int = 0  # mean service time of the last round; the slots start spread over it
    round_s: tuple[float, ...] = ()  # first send to last byte of each round
    settled: bool | None = None  # two consecutive rounds took the same time; None: not compared


class MachineFacts(ManifestPart):
    """Load of the client's machine during a run."""

    load_average_before: float | None = None  # over one minute
    load_average_after: float | None = None
    stolen_share: float | None = None  # share of CPU time that other virtual machines took
    cpu_mhz_before: float | None = None
    cpu_mhz_after: float | None = None


class HostFacts(ManifestPart):
    """The machine and the libraries of the client."""

    system: str | None = None
    kernel: str | None = None
    machine: str | None = None
    cpus: int | None = None
    python: str | None = None
    libraries: Mapping[str, str] = {}


class SloFacts(ManifestPart):
    """The latency limits of a good request, in ms; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def limits(self) -> dict[str, float]:
        """Return latency → limit, for the limits that are set."""
        return {name: limit for name, limit in self if limit is not None}


class RequestFacts(ManifestPart):
    """The user's settings for every request of a run."""

    api: str = "completions"
    body: Mapping[str, Any] = {}  # fields merged into the body
    headers: tuple[str, ...] = ()  # names only; values are never stored
    lora: Mapping[str, float] = {}  # adapter → share of the requests
    verify_tls: bool | str = True  # a text: the file with the authorities


class RunFacts(ManifestPart):
    """The facts of a run before it starts, as listed in `sweep.json`."""

    model_config = ConfigDict(extra="ignore")  # the plan has more fields than its readers need

    key: str
    arm: str
    block: int
    group: int | None = None  # runs of one engine start
    engine: str
    label: str
    engine_version: str | None = None
    engine_kind: str | None = None  # real | measured | simulated | stand-in
    gpus: int | None = None
    toggles: Mapping[str, str] = {}
    flipped: Mapping[str, ToggleFlip] = {}
    workload: str
    workload_kind: str | None = None
    request: RequestFacts | None = None  # None: the default requests of the harness
    load: LoadFacts
    seed: int | None = None
    status: str
    reason: str | None = None


class RunManifest(RunFacts):
    """One stored run: its settings, its results, and the SHA-256 of its records."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = FORMAT
    records_sha256: str | None = None  # None only before the run is stored
    predicted_sha256: str | None = None
    model: str | None = None
    hardware: HardwareFacts | None = None
    sweep_seed: int | None = None
    started: str | None = None
    clock: str | None = None  # virtual | monotonic
    clock_origin_ns: int | None = None
    client: ClientFacts | None = None
    counters: CounterMoves = CounterMoves()
    counters_left_out: str | None = None  # why the counters are not used; None: they are used
    evidence: Mapping[str, Evidence] = {}
    facts: EngineFacts = EngineFacts()
    cache: CacheFacts | None = None
    prompts: PromptFacts | None = None
    prompt_overlap: PromptOverlap | None = None
    decode_floor: StepFloor | None = None
    prefix_hit_ceiling: float | None = None
    prediction: PredictionFacts | None = None
    skipped_rows: Mapping[str, int] = {}
    warm_up: WarmUpFacts | None = None
    machine: MachineFacts | None = None
    notes: tuple[str, ...] = ()
    slo: SloFacts = SloFacts()
    max_failed_share: float | None = None
    price_per_gpu_hour: float | None = None
    history: str | None = None
    harness_version: str | None = None
    git_commit: str | None = None
    host: HostFacts | None = None
    traceback: str | None = None


class StoredSweep(ManifestPart):
    """The fields of `sweep.json` that results read: the plan and the text of the sweep file."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1] = FORMAT
    name: str
    created: str
    model: str
    hardware: HardwareFacts
    seed: int
    planned: tuple[RunFacts, ...]
    file: str | None = None
    sweep: str | None = None  # the text of the sweep file
    harness_version: str | None = None
    slo: SloFacts | None = None
    price_per_gpu_hour: float | None = None
    cache: str | None = None
    history: str | None = None
    design: str | None = None
    arms: tuple[str, ...] = ()


def parsed(kind: type[Document], text: str) -> Document:
    """Parse a JSON text into its type; raise `ValueError` with all problems in one line."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as cause:
        found = cause.errors(include_url=False, include_context=False, include_input=False)
        missing = [".".join(map(str, one["loc"])) for one in found if one["type"] == "missing"]
        lines = [f"missing {', '.join(missing)}"] if missing else []
        lines += [_problem(one) for one in found if one["type"] != "missing"]
        more = [f"{len(lines) - _NAMED} more problems"] if len(lines) > _NAMED else []
        raise ValueError("; ".join([*lines[:_NAMED], *more])) from cause


def manifest_of(facts: Mapping[str, Any]) -> RunManifest:
    """Build a manifest from plain values; raise `ValueError` if a value is invalid."""
    return parsed(RunManifest, json.dumps(finite(facts)))


def finite(value: Any) -> Any:
    """Return a copy of plain JSON values, with None for every number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _problem(found: Mapping[str, Any]) -> str:
    place = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"unknown key {place}"
    return f"{place}: {found['msg']}" if place else str(found["msg"])


def manifest_schema() -> dict[str, Any]:
    """Return the JSON schema of `manifest.json`."""
    return {"$schema": JSON_SCHEMA, **RunManifest.model_json_schema()}
