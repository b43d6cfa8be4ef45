"""Step times fitted to one engine on one machine, and their profile file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError

_FORMAT = 1
# Toggles that the scheduler models. All other toggles are fixed in the fitted step times.
SCHEDULED_TOGGLES = frozenset(
    {"prefix_caching", "chunked_prefill", "batching", "paged_kv", "speculative"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """The parameters of a fit: the seconds of each part of a step on one machine."""

    step_s: float  # per step, independent of its content
    sequence_s: float  # per token that a decoding sequence feeds
    context_token_s: float  # per token of context that decoding sequences read
    prompt_s: float  # per prompt, or chunk of a prompt, in the step
    prompt_token_s: float  # per new prompt token
    request_s: float  # per request, before it enters the engine: HTTP, tokenization, processes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Fitted step costs, the conditions of the fitted runs, and the errors on unseen runs."""

    engine: str
    engine_version: str | None
    model: str
    gpu: str
    gpu_count: int
    costs: StepCosts
    kv_tokens: int  # capacity of the engine's KV cache
    block_tokens: int
    fixed: Mapping[str, str]  # toggle that changes step times → its value in all fitted runs
    runs: int  # number of fitted runs
    errors: Mapping[str, float] = field(default_factory=dict)  # metric → median error share, unseen

    @property
    def error_share(self) -> float | None:
        """The largest error on unseen runs, as a share; None without such a run."""
        return max(self.errors.values(), default=None)

    @property
    def sentence(self) -> str:
        """The conditions of the fit as one sentence."""
        hardware = f"{self.gpu_count} × {self.gpu}"
        return (
            f"step times fitted to {self.runs} runs of {self.engine} {self.engine_version} with "
            f"{self.model} on {hardware}"
        )

    @property
    def error_sentences(self) -> list[str]:
        """The errors on unseen runs, one sentence per metric."""
        return [
            f"{metric}: median error {share:.1%} on runs that were not part of the fit"
            for metric, share in self.errors.items()
        ]

    def differing(self, toggles: Mapping[str, str]) -> list[str]:
        """Return the toggles that change step times and differ from their value in the fit."""
        return [name for name, value in self.fixed.items() if toggles.get(name, value) != value]

    def facts(self) -> dict[str, Any]:
        """Return the profile as JSON values."""
        return asdict(self)


def profile_from(values: Mapping[str, Any]) -> StepProfile:
    """Parse a profile from a JSON object. Raises `ValueError` for a missing or invalid key."""
    missing = [one.name for one in fields(StepProfile) if one.name not in values]
    if missing:
        raise ValueError(f"missing keys: {', '.join(missing)}")
    known = {one.name: values[one.name] for one in fields(StepProfile)}
    for name in ("kv_tokens", "block_tokens", "gpu_count", "runs"):
        if not isinstance(known[name], int) or known[name] < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {known[name]!r}")
    for name in ("fixed", "errors"):
        if not isinstance(known[name], Mapping):
            raise ValueError(f"{name}: expected an object, got {known[name]!r}")  # noqa: TRY004
    return StepProfile(**{**known, "costs": _costs(known["costs"])})


def _costs(values: Any) -> StepCosts:
    names = [one.name for one in fields(StepCosts)]
    costs = {
        name: _seconds(name, values.get(name) if isinstance(values, Mapping) else None)
        for name in names
    }
    if not costs["step_s"] and not costs["sequence_s"]:
        raise ValueError("costs: step_s and sequence_s are both 0; one must be above 0")
    return StepCosts(**costs)


def _seconds(name: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(seconds := float(str(value))) and seconds >= 0:
        return seconds
    raise ValueError(f"costs.{name}: expected seconds of at least 0, got {value!r}")


def profile_text(profile: StepProfile) -> str:
    """Return the content of the profile file."""
    return json.dumps({"format": _FORMAT, **profile.facts()}, indent=1) + "\n"


def read_profile(path: Path) -> StepProfile:
    """Read a profile file. Raises `ValueError` when it is not valid."""
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ValueError(f"{path} cannot be read: {cause}") from cause
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a step profile of format {_FORMAT}; make one with `harness fit`"
        )
    return profile_from(values)


class FittedStepTime:
    """A `core.StepTimer` with step times that are linear in the content of the step."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        """Return (seconds, seconds per token of context) of a step that only decodes."""
        costs = self._costs
        return costs.step_s + costs.sequence_s * sequences * queries, costs.context_token_s

    def step_s(
        self,
        sequences: int,
        queries: int,
        context_tokens: int,
        chunks: Sequence[tuple[int, int]],
        sampled: int,  # noqa: ARG002  part of the cost of sequences and prompts
    ) -> float:
        """Return the seconds of a step with `chunks` of (new, earlier) prompt tokens."""
        costs = self._costs
        fixed_s, slope_s = self.decode_line(sequences, queries)
        new_tokens = sum(new for new, _ in chunks)
        prompts_s = costs.prompt_s * len(chunks) + costs.prompt_token_s * new_tokens
        return fixed_s + slope_s * context_tokens + prompts_s

    def swap_s(self, tokens: int) -> float:
        """Raise `EngineError`: fitted engines recompute preempted sequences instead of swapping."""
        raise EngineError(
            f"a step profile has no time for swapping {tokens} tokens; set preemption to recompute"
        )
