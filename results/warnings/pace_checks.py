"""Checks of the pace: stretches without a token, and tokens that came several at a time."""

from __future__ import annotations

from harness.results.metrics import RunMetrics
from harness.results.store import RunManifest
from harness.results.summary import RunWarning
from harness.results.units import count, significant

_CLUMPED_SHARE = 0.05  # of output tokens; fewer change no gap statistic that a reader would notice
_NAMED = 3  # silences that are named one by one


def stalled(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    """Warn about stretches without a token on any stream, though requests were in flight."""
    silences = metrics.silences
    if not silences:
        return None
    named = ", ".join(
        f"{one.length_s:.3g} s from {one.start_s:.3g} s on" for one in silences[:_NAMED]
    )
    more = f" and {len(silences) - _NAMED} more" if len(silences) > _NAMED else ""
    most = max(one.in_flight for one in silences)
    return RunWarning(
        name="stalled",
        message=f"no token came on any stream for {named}{more}, with up to "
        f"{count(most, 'request')} in flight: the rates and latencies of this run contain that",
        remedy="check the engine's log and other work on its machine at that time, and repeat the "
        "run",
    )


def clumped(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about tokens whose events one read of the socket completed together."""
    share = metrics.run.clumped_share
    if share is None or share <= _CLUMPED_SHARE:
        return None
    late_ms, tpot = _client_lag_ms(manifest), metrics.run.tpot_ms
    own = late_ms is not None and tpot is not None and tpot.p50 is not None and late_ms >= tpot.p50
    cause = (
        f"the client read late (its event loop woke {significant(late_ms or 0)} ms late, p99), "
        "which counts for its certificate"
        if own
        else "the server or a proxy sends several events at a time; the client read in time"
    )
    return RunWarning(
        name="clumped",
        message=f"{100 * share:.0f} % of the output tokens came with the event before them, so "
        f"their own times are unknown: {cause}",
        remedy="give the client a processor of its own"
        if own
        else "look for a proxy that buffers the stream; read tpot_ms rather than itl_ms",
    )


def _client_lag_ms(manifest: RunManifest) -> float | None:
    """Return the P99 of the worst client process's loop lag, in ms; None: not measured."""
    workers = () if manifest.client is None else manifest.client.workers
    lags = [one.loop_lag_ns.p99 for one in workers if one.loop_lag_ns is not None]
    known = [lag for lag in lags if lag is not None]
    return max(known) / 1e6 if known else None
