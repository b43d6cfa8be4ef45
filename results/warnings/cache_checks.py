"""Was the prefix cache in the state that the run's label says, and could that be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.results.metrics import RunFigures
from harness.results.warnings.warning import RunWarning

_STATES = {
    "cold": "each run began with an empty prefix cache",
    "primed": "before each run, unmeasured, every prefix that conversations share was sent once",
    "steady": "before each run, unmeasured, the same workload with other texts filled the cache",
}


def cache_notes(sweep: Mapping[str, Any]) -> list[str]:
    """Return what the prefix cache held when the runs of a sweep began; [] where it is not told."""
    state = sweep.get("cache")
    return [f"cache {state}: {_STATES[state]}"] if state in _STATES else []


def cache_not_cold(_: RunFigures, manifest: Mapping[str, Any]) -> RunWarning | None:
    """Say when answers found more in the cache than this run's own requests can have left there."""
    cache = manifest.get("cache") or {}
    over, worst = cache.get("answers_over_limit"), cache.get("worst")
    if not over or not worst:
        return None
    return RunWarning(
        name="cache_not_cold",
        message=f"{over} of {cache['answers_checked']} answers found more cached tokens than they "
        f"share with earlier requests; {worst['request_id']} found {worst['cached_tokens']:,} of "
        f"at most {worst['limit_tokens']:,}",
        remedy="empty the cache or restart the server first, or ask other texts (another seed)",
    )


def cache_not_seen(_: RunFigures, manifest: Mapping[str, Any]) -> RunWarning | None:
    """Say when no answer told its cached tokens, so that the cache's state rests on trust."""
    cache = manifest.get("cache") or {}
    off = (manifest.get("toggles") or {}).get("prefix_caching") == "off"
    if cache.get("state") not in ("cold", "primed") or off or cache.get("answers_checked") != 0:
        return None
    return RunWarning(
        name="cache_not_seen",
        message=f"no answer tells how many of its prompt's tokens were cached: that the cache was "
        f"{cache['state']} when the run began is not checked",
        remedy="have the server tell it (prompt_tokens_details.cached_tokens in its usage)",
    )
