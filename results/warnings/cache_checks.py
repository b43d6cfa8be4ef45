"""Was the prefix cache in the state that the run's label says, and could that be seen."""

from __future__ import annotations

from harness.results.metrics import RunMetrics
from harness.results.store import RunManifest, StoredSweep
from harness.results.summary import RunWarning

_STATES = {
    "cold": "each run began with an empty prefix cache",
    "primed": "before each run, unmeasured, every prefix that conversations share was sent once",
    "steady": "before each run, unmeasured, the same workload with other texts filled the cache",
}


def cache_notes(sweep: StoredSweep) -> list[str]:
    """Return the state of the prefix cache at the start of each run; [] where it is not known."""
    state = sweep.cache
    return [f"cache {state}: {_STATES[state]}"] if state in _STATES else []


def counters_left_out(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about a server's counters that are not those of this run's requests."""
    if manifest.counters_left_out is None:
        return None
    return RunWarning(
        name="counters_left_out",
        message=f"{manifest.counters_left_out}; no metric uses them, the prefix hit rate is absent",
        remedy="keep other clients off the server, or name the metrics of every replica: "
        "--metrics-url, in a sweep metrics_urls",
    )


def cache_not_cold(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Say when answers found more in the cache than this run's own requests can have left there."""
    cache = manifest.cache
    if cache is None or not cache.answers_over_limit or cache.worst is None:
        return None
    worst = cache.worst
    return RunWarning(
        name="cache_not_cold",
        message=f"{cache.answers_over_limit} of {cache.answers_checked} answers found more cached "
        f"tokens than they share with earlier requests; {worst.request_id} found "
        f"{worst.cached_tokens:,} of at most {worst.limit_tokens:,}",
        remedy="empty the cache or restart the server first, or ask other texts (another seed)",
    )


def cache_not_seen(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Say when no answer told its cached tokens, so that the cache's state rests on trust."""
    cache = manifest.cache
    off = manifest.toggles.get("prefix_caching") == "off"
    if cache is None or cache.state not in ("cold", "primed") or off or cache.answers_checked != 0:
        return None
    return RunWarning(
        name="cache_not_seen",
        message=f"no answer tells how many of its prompt's tokens were cached: that the cache was "
        f"{cache.state} when the run began is not checked",
        remedy="have the server tell it (prompt_tokens_details.cached_tokens in its usage)",
    )
