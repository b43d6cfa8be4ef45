"""Step times fitted to one engine on one machine, and the file with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError

_FORMAT = 1
# Toggles that the scheduler follows; the value of every other one is part of the step times.
SCHEDULED_TOGGLES = frozenset(
    {"prefix_caching", "chunked_prefill", "batching", "paged_kv", "speculative"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """The parameters of a fit: the seconds that each part of a step takes on one machine."""

    step_s: float  # of every step, whatever is in it
    sequence_s: float  # for each token that a decoding sequence feeds
    context_token_s: float  # for each token of context that decoding sequences read
    prompt_s: float  # for each prompt, or part of one, in the step
    prompt_token_s: float  # for each new prompt token
    request_s: float  # once for each request, before it is in the engine: HTTP, tokens, processes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Fitted step costs, the runs that they were fitted to, and the errors on other runs."""

    engine: str
    engine_version: str | None
    model: str
    gpu: str
    gpu_count: int
    costs: StepCosts
    kv_tokens: int  # of the engine's cache
    block_tokens: int
    fixed: Mapping[str, str]  # toggles that change step times → their value in all these runs
    runs: int  # that it was fitted to
    errors: Mapping[str, float] = field(default_factory=dict)  # metric → median on unseen, a share

    @property
    def error_share(self) -> float | None:
        """The largest of the errors on unseen runs; None where there was no such run."""
        return max(self.errors.values(), default=None)

    @property
    def sentence(self) -> str:
        """What the costs were fitted to, in words."""
        hardware = f"{self.gpu_count} × {self.gpu}"
        return (
            f"step times fitted to {self.runs} runs of {self.engine} {self.engine_version} with "
            f"{self.model} on {hardware}"
        )

    @property
    def error_sentences(self) -> list[str]:
        """The errors on runs that the fit did not see, a sentence for each metric."""
        return [
            f"{metric}: median error {share:.1%} on runs that the fit did not see"
            for metric, share in self.errors.items()
        ]

    def differing(self, toggles: Mapping[str, str]) -> list[str]:
        """Return which of `toggles` differ from those of the fit and change step times."""
        return [name for name, value in self.fixed.items() if toggles.get(name, value) != value]

    def facts(self) -> dict[str, Any]:
        """Return the profile in plain JSON values."""
        return asdict(self)


def profile_from(values: Mapping[str, Any]) -> StepProfile:
    """Return the profile in a JSON object. Raises `ValueError` with what is missing or odd."""
    missing = [one.name for one in fields(StepProfile) if one.name not in values]
    if missing:
        raise ValueError(f"{', '.join(missing)}: missing")
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
        raise ValueError("costs: a decode step that takes no time never ends")
    return StepCosts(**costs)


def _seconds(name: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(seconds := float(str(value))) and seconds >= 0:
        return seconds
    raise ValueError(f"costs.{name}: expected seconds of at least 0, got {value!r}")


def profile_text(profile: StepProfile) -> str:
    """Return the text of a file with `profile`."""
    return json.dumps({"format": _FORMAT, **profile.facts()}, indent=1) + "\n"


def read_profile(path: Path) -> StepProfile:
    """Return the profile in a file. Raises `ValueError` with what is wrong."""
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ValueError(f"{path} cannot be read: {cause}") from cause
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise ValueError(f"{path} is no profile of format {_FORMAT}, as `harness fit` writes one")
    return profile_from(values)


class FittedStepTime:
    """The seconds of any step, linear in what is in it; a `core.StepTimer`."""

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
        sampled: int,  # noqa: ARG002  its cost is in that of sequences and prompts
    ) -> float:
        """Return the seconds of a step with `chunks` of (new, earlier) prompt tokens."""
        costs = self._costs
        fixed_s, slope_s = self.decode_line(sequences, queries)
        new_tokens = sum(new for new, _ in chunks)
        prompts_s = costs.prompt_s * len(chunks) + costs.prompt_token_s * new_tokens
        return fixed_s + slope_s * context_tokens + prompts_s

    def swap_s(self, tokens: int) -> float:
        """Raise `EngineError`: a profile is of engines that compute anew what they preempt."""
        raise EngineError(f"a profile knows nothing of swapping {tokens} tokens")
