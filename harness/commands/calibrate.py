"""`harness calibrate`: how exact this machine's client is, and up to which load."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES
from harness.calibration import (
    LIMIT_MS,
    Rung,
    calibration_document,
    calibration_host,
    keep_calibration,
)
from harness.output import printing
from harness.plan import PeakRate, make_plan, peak_rates
from harness.reference import ITL_MS, STREAMS, cores, fits, rung
from harness.results import ABSENT, significant
from harness.results.store import StoreError
from harness.sweep_file import load_sweep

_WIDTH = 100
_TRIES = 4  # of a rung that is not good
_PATIENCE_S = 30.0  # after which no rung is tried again: all of it shall take less than a minute
_MARKS = {
    "good": "",
    "client": f"client off by {LIMIT_MS:g} ms or more",
    "server": "server fell behind: cannot be told",
}
_HEADS = """\
                      first token     last token      each token  request  client cores    server
streams   tokens/s     p50    p99      p50    p99      p50    p99    wait   used queued  late p99"""


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine's client and keep what was found; 1 when no rung was good."""
    peaks = _peaks(arguments.sweep)
    _check_out(arguments.out)
    host = calibration_host()
    with cores() as pinned:
        rungs = list(_climb(pinned.server))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    document = calibration_document(rungs, host, date=date, pinned=pinned.server is not None)
    _keep(document, arguments.out)
    with printing():
        if arguments.json:
            told = document if peaks is None else {**document, "sweep": _sweep(peaks, document)}
            sys.stdout.write(json.dumps(told, indent=1, allow_nan=False) + "\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in _lines(rungs, document, peaks))
    return 0 if document["highest_tokens_per_s"] is not None else 1


def _climb(server_core: int | None) -> Iterator[Rung]:
    """Yield one rung after the other, up to the first at which the client is too slow.

    A rung that is not good is tried again while there is time, and the best try counts: what only
    moments of a busy machine did is no property of the client.
    """
    begun_s = time.monotonic()
    for streams in STREAMS:
        if not fits(streams):
            _say(f"{streams} streams: this process may not open so many files; stopped below")
            return
        _say(f"{streams} streams of up to {1000 / ITL_MS:g} tokens/s")
        seen = rung(streams, server_core)
        for _ in range(1, _TRIES):
            if seen.verdict == "good" or time.monotonic() - begun_s >= _PATIENCE_S:
                break
            _say(f"{streams} streams again: {_MARKS[seen.verdict]}")
            seen = min(seen, rung(streams, server_core), key=lambda one: one.error_ms)
        yield seen
        if seen.verdict == "client":
            return


def _peaks(path: Path | None) -> list[PeakRate] | None:
    """Return the peaks of a sweep's plan. Raises as planning does."""
    if path is None:
        return None
    adapters = {name: adapter() for name, adapter in ENGINES.items()}
    plan = make_plan(load_sweep(path, engines=tuple(adapters)), adapters)
    return list(peak_rates(plan, adapters))


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.exists():
        raise StoreError(f"--out {out}: exists already; name a new file")
    if not out.parent.is_dir():
        raise StoreError(f"--out {out}: there is no folder {out.parent}")


def _keep(document: dict[str, Any], out: Path | None) -> None:
    """Keep what was found, for later runs and in `out`. Raises `StoreError` for the latter."""
    try:
        _say(f"kept in {keep_calibration(document)}")
    except (OSError, RuntimeError) as error:  # no home, a full disk: later runs know nothing of it
        _say(f"not kept for later runs: {error}")
    if out is None:
        return
    try:
        out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as cause:
        raise StoreError(f"--out {out}: {cause.strerror or cause}") from cause
    _say(f"wrote {out}")


def _lines(
    rungs: Sequence[Rung], document: dict[str, Any], peaks: Sequence[PeakRate] | None
) -> Iterator[str]:
    yield "This client's stamps minus the true times, in ms; a token each 10 ms to every stream."
    yield ""
    yield from _HEADS.splitlines()
    for one in rungs:
        yield _row(one)
        if mark := _MARKS[one.verdict]:
            yield f"          ↑ {mark}"
    rate = document["highest_tokens_per_s"]
    yield ""
    if rate is None:
        yield f"No load was stamped within {LIMIT_MS:g} ms at P99."
        yield "What else runs on this machine? An idle one, or one more core, may do."
    else:
        yield f"Within {LIMIT_MS:g} ms at P99 up to {rate:,.0f} tokens/s."
    if not document["server_on_its_own_core"]:
        yield "Client and server shared one core: with two it may be more."
    for peak in peaks or ():
        yield from textwrap.wrap(_told(peak, rate), _WIDTH, subsequent_indent="  ")


def _row(one: Rung) -> str:
    errors = "  ".join(
        f"{_ms(spread.p50):>6} {_ms(spread.p99):>6}"
        for spread in (one.first_ms, one.last_ms, one.each_ms)
    )
    return (
        f"{one.streams:7,} {one.tokens_per_s:10,.0f} {errors} {_ms(one.wait_ms.p50):>7}"
        f" {_share(one.client_cores):>6} {_share(one.client_queued):>6}"
        f" {_ms(one.server_late_ms.p99):>9}"
    )


def _share(cores_used: float | None) -> str:
    return ABSENT if cores_used is None else f"{cores_used:.2f}"


def _ms(value_ms: float) -> str:
    return f"{value_ms:.2f}" if value_ms < 100 else significant(value_ms)


def _sweep(peaks: Sequence[PeakRate], document: dict[str, Any]) -> list[dict[str, Any]]:
    rate = document["highest_tokens_per_s"]
    return [{**asdict(peak), "verdict": _verdict(peak, rate)} for peak in peaks]


def _verdict(peak: PeakRate, rate: float | None) -> str:
    """Return `virtual`, `unknown`, `below` or `above`."""
    if peak.simulated:
        return "virtual"
    if peak.tokens_per_s is None:
        return "unknown"
    return "below" if rate is not None and peak.tokens_per_s < rate else "above"


def _told(peak: PeakRate, rate: float | None) -> str:
    name = f"{peak.label} · {peak.workload} · {peak.load}"
    most = ABSENT if peak.tokens_per_s is None else f"{peak.tokens_per_s:,.0f} tokens/s"
    verdict = _verdict(peak, rate)
    if verdict == "virtual":
        return f"{name}: up to {most}, on virtual time: no client can be late"
    if verdict == "unknown":
        bound = ""
        if rate is not None and peak.concurrency is not None:
            bound = f"; below it while TPOT stays above {peak.concurrency / rate * 1e3:.2f} ms"
        return f"{name}: cannot be told before it runs{bound}"
    return f"{name}: up to {most} expected, {verdict} what is stamped within {LIMIT_MS:g} ms"


def _say(line: str) -> None:
    with suppress(OSError):  # nobody listens
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
