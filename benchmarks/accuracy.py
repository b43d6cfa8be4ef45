"""How exact the client's stamps are: against a server that writes down when it sent each token.

    python benchmarks/accuracy.py [--runs 5] [--concurrency 64 256]

Prints, for each concurrency, the median over the runs of the error (client's stamp minus server's)
of the first and of the last token of each request, p50 and p99, in ms. 256 output tokens, one each
10 ms, all requests begun at once; server and client on a core each where there are two. `t_recv −
sent`, the time that a request waited in the server's socket, stands apart: it is never negative and
no fault of the client. So does how late the server began its ticks.

Other processes on the machine are in the figures. Where they cannot be ended:

    chrt --rr 1 python benchmarks/accuracy.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

from harness.calibration.finding import MedianAndP99, Rung
from harness.reference.process import reference_process
from harness.reference.rungs import ITL_MS, TTFT_MS, cores, measured
from harness.sweep_file import Load

OUTPUT_TOKENS = 256
ROWS: tuple[tuple[str, Callable[[Rung], MedianAndP99]], ...] = (
    ("first token", lambda run: run.first_ms),
    ("last token", lambda run: run.last_ms),
    ("each token", lambda run: run.each_ms),
    ("t_recv − sent (the server's)", lambda run: run.wait_ms),
    ("tick begun − due (the server's)", lambda run: run.server_late_ms),
)


def one_run(concurrency: int, rounds: int, server_core: int | None) -> Rung:
    """Return what one load shows; each stream makes `rounds` requests."""
    load = Load(
        mode="concurrency",
        arrivals="closed",
        concurrency=concurrency,
        requests=concurrency * rounds,
    )
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS, cpu=server_core) as server:
        return measured(server, load, output_tokens=OUTPUT_TOKENS)


def median(runs: Sequence[Rung], figure: Callable[[Rung], float | None]) -> float:
    """Return the median of a figure over the runs; nan where no run has it."""
    known = [value for run in runs if (value := figure(run)) is not None]
    return statistics.median(known) if known else float("nan")


def report(concurrency: int, runs: Sequence[Rung]) -> None:
    """Print the lines of one concurrency."""
    rate = median(runs, lambda run: run.tokens_per_s)
    used = median(runs, lambda run: run.client_cores)
    queued = median(runs, lambda run: run.client_queued)
    print(
        f"\nconcurrency {concurrency}: {rate:,.0f} tokens/s, {runs[0].requests} requests a run; "
        f"client {used:.2f} cores, {queued:.2f} waiting for one"
    )
    for name, spread in ROWS:
        p50 = median(runs, lambda run, of=spread: of(run).p50)  # type: ignore[misc]
        p99 = median(runs, lambda run, of=spread: of(run).p99)  # type: ignore[misc]
        worst = max(spread(run).p99 for run in runs)
        print(f"{name:32} {p50:9.3f} {p99:9.3f} {worst:14.3f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4, help="requests of each stream")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 256])
    arguments = parser.parse_args()
    print(f"{'ms':32} {'p50':>9} {'p99':>9} {'worst run p99':>14}")
    with cores() as pinned:
        if pinned.server is None:
            print("server and client share one core")
        for concurrency in arguments.concurrency:
            runs = [
                one_run(concurrency, arguments.rounds, pinned.server) for _ in range(arguments.runs)
            ]
            report(concurrency, runs)


if __name__ == "__main__":
    main()
