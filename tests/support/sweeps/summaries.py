"""Summaries as `analysis` writes them, made up for the tests of tables, plots and report.

The figures are drawn, not measured; their sizes are those of a 70B model on four A100s.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from harness.results.client.certificate import uncertified
from harness.results.names import HIGHER, headline_metrics, kind
from harness.results.store import LoadFacts
from harness.results.summary import SCHEMA_VERSION, document_of

# arm: (toggle, value, base, implied, factor on throughput at low and high load, on TTFT, on TPOT)
SWITCH: tuple[str, str, dict[str, str]] = ("off", "on", {})
ARMS: dict[str, tuple[str, str, str, dict[str, str], tuple[float, ...]]] = {
    "prefix_caching=off": ("prefix_caching", *SWITCH, (0.93, 0.55, 8.1, 11.7, 1.0, 1.38)),
    "chunked_prefill=off": ("chunked_prefill", *SWITCH, (1.0, 0.97, 0.98, 0.9, 1.0, 1.05)),
    "batching=static": ("batching", "static", "continuous", {}, (1.0, 0.41, 1.0, 64, 1.0, 0.96)),
    "paged_kv=off": (
        "paged_kv",
        "off",
        "on",
        {"prefix_caching": "off"},
        (0.93, 0.31, 8.1, 96.0, 1.0, 0.62),
    ),
    "cuda_graphs=off": ("cuda_graphs", *SWITCH, (0.82, 0.94, 1.12, 1.07, 1.22, 1.06)),
    "overlap_scheduling=off": ("overlap_scheduling", *SWITCH, (0.97, 0.96, 1.01, 1.03, 1.03, 1.04)),
    "kv_cache_dtype=fp8": (
        "kv_cache_dtype",
        "fp8",
        "auto",
        {},
        (1.01, 1.12, 0.99, 0.96, 0.99, 0.9),
    ),
    "quantization=int8": ("quantization", "int8", "none", {}, (1.71, 1.22, 1.0, 0.98, 0.56, 0.81)),
    "quantization=int4": ("quantization", "int4", "none", {}, (2.64, 1.31, 1.02, 1.04, 0.34, 0.74)),
    "tensor_parallel=8": ("tensor_parallel", "8", "4", {}, (1.62, 1.74, 0.61, 0.55, 0.62, 0.58)),
    "speculative=ngram": ("speculative", "ngram", "off", {}, (1.32, 0.98, 1.01, 1.03, 0.74, 1.02)),
    "speculative=draft": ("speculative", "draft", "off", {}, (1.95, 0.87, 1.06, 1.11, 0.48, 1.16)),
    "speculative=eagle": ("speculative", "eagle", "off", {}, (2.42, 1.08, 1.03, 1.05, 0.39, 0.91)),
}
# (output tokens/s, TTFT p50 ms, TPOT p50 ms) of the baseline: workload → at each load
BASELINES = {
    "support-bot": ((48.9, 71.0, 19.8), (2310.0, 412.0, 39.5)),
    "chat": ((45.1, 96.0, 20.1), (2055.0, 533.0, 43.8)),
}
LOADS = (
    {"mode": "concurrency", "value": 1, "requests": 20, "arrivals": "closed"},
    {"mode": "concurrency", "value": 100, "requests": 400, "arrivals": "closed"},
)
PRIMARY = ("output_tokens_per_s", "ttft_ms.p50", "tpot_ms.p50")
ASSUMPTIONS = [
    "eagle: each of 5 draft tokens is accepted with probability 0.85",
    "assumed step efficiency of the roofline: 0.62 of peak FLOPs, 0.78 of peak bandwidth",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """What to make up: the engines, the blocks, and whether a simulation says so."""

    labels: Sequence[str] = ("embedded",)
    blocks: int = 3
    simulated: bool = True
    void: str | None = "chunked_prefill=off"  # void on the second workload at the second load
    skipped: str | None = None
    invalid: str | None = None  # its client is, on the second workload at the second load
    degraded: str | None = None  # likewise


def certificate_of(lag_ms: float) -> dict[str, Any]:
    """Return the certificate of a client whose loop is so late, at a TPOT of 40 ms."""
    verdict = "INVALID" if lag_ms > 20 else "DEGRADED" if lag_ms > 4 else "TRUSTED"
    limit = 20 if verdict == "INVALID" else 4
    reason = {
        "name": "loop_lag",
        "verdict": verdict,
        "message": f"the client's event loop woke {lag_ms:g} ms late (p99); "
        f"the limit is {limit} ms",
        "remedy": "use more client processes (`--workers 2`) or a quieter machine",
    }
    bounds = {"degraded": 4.0, "invalid": 20.0}
    return {
        "verdict": verdict,
        "reasons": [] if verdict == "TRUSTED" else [reason],
        "measured": {
            "send_delay": {"value": 0.4, "unit": "ms", **bounds},
            "loop_lag": {"value": lag_ms, "unit": "ms", **bounds},
            "cpu": {"value": 0.31, "unit": "share", "degraded": 0.8, "invalid": 0.95},
        },
        "errors": {"ttft_ms": lag_ms / 500, "tpot_ms": lag_ms / 10_000},
    }


def make_summary(fixture: Fixture | None = None) -> dict[str, Any]:
    """Return a summary of 15 arms, 2 workloads, 2 loads and the fixture's blocks."""
    fixture = fixture or Fixture()
    cells = [
        _Cell(fixture=fixture, label=label, arm=arm, workload=workload, level=level)
        for workload in BASELINES
        for level in (0, 1)
        for label in fixture.labels
        for arm in ("baseline", "baseline-again", *ARMS)
    ]
    kind = "simulated" if fixture.simulated else "real"
    return {
        "schema_version": SCHEMA_VERSION,
        "name": "quickstart",
        "file": "quickstart.yaml",
        "simulated": fixture.simulated,
        "harness_version": "0.1.0",
        "created": "2026-01-05T10:11:12+00:00",
        "model": "meta-llama/Meta-Llama-3-70B-Instruct",
        "hardware": {"gpu": "a100-80gb", "count": 4},
        "seed": 0,
        "slo": {"ttft_ms": 1000, "tpot_ms": 50, "e2e_ms": 30_000},
        "price_per_gpu_hour": None,
        "cache": None,
        "history": "recorded",
        "stand_in": False,
        "assumptions": ASSUMPTIONS if fixture.simulated else [],
        "notes": ["history is recorded: live chat would reuse its answers as well"],
        "margin": 0.03,
        "runs": [run for cell in cells for run in cell.runs(kind)],
        "arms": [cell.arm_row() for cell in cells],
        "effects": [effect for cell in cells for effect in cell.effects()],
    }


def make_distributions(summary: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the request table of every run that has metrics, as `metrics` reads them."""
    return {run["key"]: _requests(run) for run in summary["runs"] if run["metrics"]}


def _requests(run: dict[str, Any]) -> pd.DataFrame:
    rng = np.random.default_rng(int(run["key"], 16))
    sent, slots = run["load"]["requests"], run["load"]["value"]
    output_tokens = rng.integers(100, 400, sent)
    frame = pd.DataFrame(
        {
            "ttft_ms": run["metrics"]["ttft_ms"]["p50"] * rng.lognormal(0, 0.35, sent),
            "tpot_ms": run["metrics"]["tpot_ms"]["p50"] * rng.lognormal(0, 0.12, sent),
            "measured": np.arange(sent) >= (0 if run["window"]["kind"] == "whole-run" else slots),
            "ok": np.arange(sent) % 97 != 96,
        }
    )
    frame["e2e_ms"] = frame["ttft_ms"] + frame["tpot_ms"] * output_tokens
    frame.loc[~frame["ok"], ["ttft_ms", "tpot_ms", "e2e_ms"]] = np.nan
    return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One arm at one workload and load."""

    fixture: Fixture
    label: str
    arm: str
    workload: str
    level: int

    @property
    def status(self) -> str:
        if self.arm == self.fixture.skipped:
            return "skipped"
        if self.workload != "chat" or self.level != 1:
            return "ok"
        return {self.fixture.void: "void", self.fixture.invalid: "invalid"}.get(self.arm, "ok")

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate of each of its runs: none where all is simulated."""
        if self.fixture.simulated:
            return document_of(
                uncertified("virtual_time", "virtual time: there is none to certify")
            )
        if self.status == "skipped":
            return document_of(uncertified("not_run", "not run"))
        second = self.workload == "chat" and self.level == 1
        if self.status == "invalid":
            return certificate_of(lag_ms=95.0)
        return certificate_of(lag_ms=5.5 if second and self.arm == self.fixture.degraded else 0.3)

    @property
    def reason(self) -> str | None:
        return {
            "ok": None,
            "skipped": "needs hardware with 8-bit floating point",
            "void": "chunked_prefill: asked for off, 212 prompts were split across steps",
            "invalid": "the client's event loop woke 95 ms late (p99); the limit is 20 ms",
        }[self.status]

    @property
    def flipped(self) -> dict[str, Any]:
        if self.arm not in ARMS:
            return {}
        toggle, value, base, implied, _ = ARMS[self.arm]
        return {toggle: {"value": value, "base": base, "implied": implied}}

    def primaries(self, block: int | None = None) -> dict[str, float]:
        """The primary metrics; with a block, as drawn in it (the same draw for all arms)."""
        base = BASELINES[self.workload][self.level]
        factors = ARMS[self.arm][4] if self.arm in ARMS else (1.0,) * 6
        draw = 1.0 if block is None else 1 + 0.01 * ((block + 1) % 3 - 1)
        own = 1.0 if block is None or self.arm not in ARMS else 1 + 0.004 * (block % 3 - 1)
        return {
            name: base[i] * factors[2 * i + self.level] * draw * own
            for i, name in enumerate(PRIMARY)
        }

    def scalars(self, block: int | None = None) -> dict[str, float | None]:
        tokens_per_s, _, tpot_ms = self.primaries(block).values()
        return {
            "output_tokens_per_s": tokens_per_s,
            "output_tokens_per_s_whole_run": 0.9 * tokens_per_s,
            "output_tokens_per_s_per_user": 1e3 / tpot_ms,
            "output_tokens_per_s_per_gpu": tokens_per_s / self.gpus,
            "total_tokens_per_s": 9 * tokens_per_s,
            "total_tokens_per_s_per_gpu": 9 * tokens_per_s / self.gpus,
            "requests_per_s": tokens_per_s / 256,
            "requests_per_s_whole_run": tokens_per_s / 270,
            "goodput_rps": tokens_per_s / 256 * 0.91,
            "goodput_share": 0.91,
            "prefix_hit_rate": 0.0 if "prefix_caching=off" in self.arm else 0.83,
            "prefix_hit_ceiling": 0.94,
            "clumped_share": 0.0,
            "acceptance_rate": 0.78 if self.arm.startswith("speculative") else None,
            "mean_accepted_length": 3.4 if self.arm.startswith("speculative") else None,
            "completed": self.counts["ok"],
            "preemptions": 12 if self.level else 0,
            "cost_per_million_output_tokens": None,
        }

    @property
    def gpus(self) -> int:
        return 8 if self.arm == "tensor_parallel=8" else 4

    def distributions(self, block: int | None = None) -> dict[str, dict[str, Any] | None]:
        _, ttft_ms, tpot_ms = self.primaries(block).values()
        n = self.counts["measured"]

        def around(p50: float, spread: float) -> dict[str, Any]:
            return {
                "mean": p50 * 1.06,
                "p50": p50,
                "p90": p50 * math.exp(1.28 * spread),
                "p95": p50 * math.exp(1.64 * spread),
                "p99": p50 * math.exp(2.33 * spread),
                "n": n,
                "p99_reliable": n >= 299,
                "p99_needs": max(0, 299 - n),
            }

        return {
            "ttft_ms": around(ttft_ms, 0.35),
            "scheduled_ttft_ms": None,
            "tpot_ms": around(tpot_ms, 0.12),
            "itl_ms": around(tpot_ms, 0.2),
            "chunk_gap_ms": around(tpot_ms, 0.2),
            "e2e_ms": around(ttft_ms + 250 * tpot_ms, 0.3),
            "scheduled_e2e_ms": None,
            "tail_ms": around(0.4, 0.1),
            "send_delay_ms": None,
            "slo_ttft_ms": None,
            "slo_e2e_ms": None,
        }

    @property
    def counts(self) -> dict[str, Any]:
        sent = int(LOADS[self.level]["requests"])  # type: ignore[call-overload] # mixed values
        measured = sent - 100 if self.level else sent
        tokens = {"prompt_tokens": None, "output_tokens": None, "duration_s": None}
        return {"sent": sent, "measured": measured, "ok": sent - 1, "failed": 1, **tokens}

    def runs(self, kind: str) -> list[dict[str, Any]]:
        """Return the runs of this arm, one a block; a skipped arm has one without figures."""
        return [self._run(block, kind) for block in range(self.fixture.blocks)]

    def _run(self, block: int, kind: str) -> dict[str, Any]:
        name = f"{self.label}/{self.workload}/{self.level}/{self.arm}/{block}"
        skipped = self.status == "skipped"
        whole = self.level == 0 and self.workload == "chat"
        metrics = {
            **self.distributions(block),
            **self.scalars(block),
            "failures": {"timeout": 1} if self.level else {},
        }
        window = {
            "kind": "whole-run" if whole else "steady",
            "start_s": 0.0 if whole else 2.5,
            "end_s": 61.25,
            "reason": "2 requests were sent after the ramp, fewer than 3 a slot" if whole else None,
            "length_s": None,
            "requests_ended": 0,
            "output_tokens": None,
            "prompt_tokens": None,
        }
        return {
            "key": hashlib.sha256(name.encode()).hexdigest()[:16],
            "arm": self.arm,
            "block": block,
            "engine": self.label.split("-")[0],
            "label": self.label,
            "engine_version": "0.1.0",
            "engine_kind": kind,
            "toggles": {toggle: change["value"] for toggle, change in self.flipped.items()},
            "workload": self.workload,
            "load": LOADS[self.level],
            "seed": 100 + block,
            "flipped": self.flipped,
            "status": self.status,
            "reason": self.reason,
            "certificate": self.certificate,
            "evidence": {} if skipped else self._evidence(),
            "metrics": None if skipped else metrics,
            "warnings": [] if skipped else self._warnings(),
            "window": None if skipped else window,
            "counts": None if skipped else self.counts,
            "gpus": self.gpus,
            "skipped_rows": {},
            "notes": [],
            "cache": None,
            "failure_samples": {},
            "prediction": None,
        }

    def _warnings(self) -> list[dict[str, str]]:
        if self.level:
            return []
        return [
            {
                "name": "few-requests",
                "message": "P99 rests on 20 requests",
                "remedy": "raise requests to 300",
            }
        ]

    def _evidence(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {
            "prefix_caching": {
                "requested": "on",
                "effective": "on",
                "observed": 0.83,
                "verdict": "verified",
            }
        }
        for toggle, change in self.flipped.items():
            found[toggle] = {
                "requested": change["value"],
                "effective": change["value"],
                "observed": 212 if self.status == "void" else 0.0,
                "verdict": "contradicted" if self.status == "void" else "verified",
            }
        return found

    def arm_row(self) -> dict[str, Any]:
        """Return the arm as `analysis` folds it over the blocks; no figures unless it is ok."""
        stats = itertools.chain.from_iterable(
            ((f"{name}.{stat}", value) for stat, value in (values or {}).items())
            for name, values in self.distributions().items()
        )
        figures = {key: value for key, value in stats if not key.endswith(("_reliable", "_needs"))}
        metrics: dict[str, float | None] = {**figures, **self.scalars()}
        fine = self.status == "ok"
        return {
            "engine": self.label.split("-")[0],
            "label": self.label,
            "arm": self.arm,
            "workload": self.workload,
            "load": LOADS[self.level],
            "n_blocks": self.fixture.blocks if fine else 0,
            "status": self.status,
            "reason": self.reason,
            "certificate": self.certificate["verdict"],
            "gpus": self.gpus,
            "flipped": self.flipped,
            "metrics": metrics if fine else dict.fromkeys(metrics),
            "predicted": None,
            "roof": None,
            "p99_reliable": self.level == 1,
        }

    def effects(self) -> list[dict[str, Any]]:
        """Return the effects on the headline metrics; none for baseline and faulty arms."""
        if self.arm == "baseline" or self.status != "ok":
            return []
        base = replace(self, arm="baseline").arm_row()["metrics"]
        own = self.arm_row()["metrics"]
        return [
            self._effect(metric, base[metric], own[metric])
            for metric in headline_metrics(LoadFacts.model_validate(LOADS[self.level]))
        ]

    def _effect(self, metric: str, baseline: float, treated: float) -> dict[str, Any]:
        toggle, value, of, implied, _ = ARMS.get(
            self.arm, ("baseline-again", "again", "baseline", {}, ())
        )
        ratio, name = treated / baseline, f"{value}/{of}"
        if {value, of} == {"on", "off"}:
            ratio, name = (ratio if value == "on" else 1 / ratio), "on/off"
        half = 0.0 if toggle == "baseline-again" else 0.01 * (1 + len(self.arm) % 7)
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
        return {
            "engine": self.label.split("-")[0],
            "label": self.label,
            "arm": self.arm,
            "toggle": toggle,
            "value": value,
            "implied": implied,
            "ratio_of": name,
            "workload": self.workload,
            "load": LOADS[self.level],
            "metric": metric,
            "unit": kind(metric).unit,
            "others_flipped": False,
            "baseline": baseline,
            "treated": treated,
            "ratio": ratio,
            "low": low,
            "high": high,
            "p_adjusted": None,
            "n_blocks": self.fixture.blocks,
            "verdict": self._verdict(metric, low, high),
            "predicted": None,
            "predicted_low": None,
            "predicted_high": None,
            "outside": None,
        }

    def _verdict(self, metric: str, low: float, high: float) -> str | None:
        if self.fixture.blocks < 5 or metric not in PRIMARY:
            return None
        if low > 0.97 and high < 1.03:
            return "NO DIFFERENCE"
        if low <= 1 <= high:
            return "INCONCLUSIVE"
        return "BETTER" if (low > 1) == (kind(metric).better == HIGHER) else "WORSE"


def only(summary: dict[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Return a summary that holds nothing but these arms."""
    rows = {
        part: [row for row in summary[part] if row["arm"] in arms]
        for part in ("runs", "arms", "effects")
    }
    return {**summary, **rows}


def as_open_loop(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary as if its requests had come at times of their own."""
    copy: dict[str, Any] = json.loads(json.dumps(summary).replace('"ttft_ms', '"scheduled_ttft_ms'))
    for row in [*copy["runs"], *copy["arms"], *copy["effects"]]:
        row["load"] = {**row["load"], "mode": "rate", "arrivals": "poisson", "duration_s": 300.0}
    copy["slo"] = summary["slo"]
    for run in copy["runs"]:
        run["metrics"] = run["metrics"] and {**run["metrics"], "ttft_ms": None}
    for arm in copy["arms"]:
        arm["metrics"]["ttft_ms.p50"] = arm["metrics"]["ttft_ms.p99"] = None
    return copy
