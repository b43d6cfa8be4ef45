"""One load level of a sweep: how many requests, and by which rule they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.sweep_file.quantities import duration_text, plain_number
from harness.workloads import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load level. Which fields are set follows from `mode`; the others are None."""

    mode: Literal["concurrency", "rate", "trace"]
    arrivals: Literal["closed", "poisson", "constant", "gamma", "trace"]
    concurrency: int | None = None  # conversations alive
    requests: int | None = None  # turns, rounded up to whole conversations
    rate_rps: float | None = None  # conversations started a second
    duration_ns: int | None = None  # for how long they are started
    gamma_cv: float | None = None  # coefficient of variation of the gaps
    max_concurrency: int | None = None  # conversations alive at most, in open loop
    limit: int | None = None  # rows of the trace at most; None: all
    speedup: float | None = None  # seconds of the trace played in one second
    output_tokens: Lengths | None = None  # in place of the workload's own; None: its own
    workloads: tuple[str, ...] | None = None  # those that this load is for; None: all that it suits
    full_label: bool = False  # another load of the sweep has the same short name: add more

    @property
    def value(self) -> float | None:
        """The concurrency, or the rate in conversations a second; None for times of a trace."""
        return self.concurrency if self.mode == "concurrency" else self.rate_rps

    @property
    def label(self) -> str:
        """A short name, such as `concurrency=100` or `rate=2,constant`; one load has one."""
        return self._short + (self._more if self.full_label else "")

    @property
    def _short(self) -> str:
        if self.mode == "concurrency":
            return f"concurrency={self.concurrency}"
        if self.mode == "rate":
            process = f"gamma(cv={plain_number(self.gamma_cv)})" if self.gamma_cv else self.arrivals
            rate = f"rate={plain_number(self.rate_rps or 0)}"
            return rate + ("" if process == "poisson" else f",{process}") + self._cap
        speedup = "" if self.speedup in (None, 1) else f",speedup={plain_number(self.speedup)}"
        limit = "" if self.limit is None else f",limit={self.limit}"
        return f"trace{limit}{speedup}{self._cap}"

    @property
    def _cap(self) -> str:
        return "" if self.max_concurrency is None else f",max_concurrency={self.max_concurrency}"

    @property
    def _more(self) -> str:
        """What else tells loads of one short name apart: how much, and for what answers."""
        much = "" if self.requests is None else f",requests={self.requests}"
        if self.duration_ns is not None:
            much = f",duration={duration_text(self.duration_ns).replace(' ', '')}"
        output = f",output={self.output_tokens.describe()}" if self.output_tokens else ""
        return much + output

    def facts(self) -> dict[str, Any]:
        """Return what manifests and summaries say of this load, ready for JSON."""
        return {
            "mode": self.mode,
            "value": self.value,
            "requests": self.requests,
            "duration_s": None if self.duration_ns is None else self.duration_ns / 1e9,
            "arrivals": self.arrivals,
            "gamma_cv": self.gamma_cv,
            "max_concurrency": self.max_concurrency,
            "limit": self.limit,
            "speedup": self.speedup,
            "output_tokens": self.output_tokens.describe() if self.output_tokens else None,
            "warmup": 0,
        }

    def identity(self) -> Mapping[str, Any]:
        """Return what makes two loads the same one: the facts, lengths in full.

        A cap only where there is one, so that loads without keep the draws that they had before.
        """
        facts = {**self.facts(), "output_tokens": repr(self.output_tokens)}
        if self.max_concurrency is None:
            del facts["max_concurrency"]
        return facts

    def describe(self) -> str:
        """Describe the load on a line of a plan."""
        output = f", output {self.output_tokens.describe()} tokens" if self.output_tokens else ""
        cap = "" if self.max_concurrency is None else f", at most {self.max_concurrency} alive"
        if self.mode == "concurrency":
            return f"closed loop, {self.concurrency} at once, {self.requests} requests{output}"
        if self.mode == "rate":
            how = f"gamma, cv {plain_number(self.gamma_cv)}" if self.gamma_cv else self.arrivals
            rate = f"{plain_number(self.rate_rps or 0)} conversations/s ({how})"
            return f"open loop, {rate} for {duration_text(self.duration_ns or 0)}{cap}{output}"
        rows = "all rows" if self.limit is None else f"at most {self.limit} rows"
        return f"open loop, times of the trace ×{plain_number(self.speedup or 1)}, {rows}{cap}"
