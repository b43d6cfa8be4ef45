"""Measure the accuracy of the client's time stamps, against a server that records each send time.

    python benchmarks/accuracy.py [--runs 5] [--concurrency 64 256]

For each concurrency, prints the error (client stamp − server stamp) of the first, the last and each
token in ms: p50 and p99, as medians over the runs. Each stream has 256 output tokens at intervals
of 10 ms, and all streams start together. With two cores or more, server and client have a core
each. Separate rows show `t_recv − sent`, the time of a request in the server's socket (never
negative, and not an error of the client), and the delay of the server's ticks.

Other processes on the machine affect the results. If you cannot stop them, run:

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
    ("t_recv − sent (server)", lambda run: run.wait_ms),
    ("tick started − due (server)", lambda run: run.server_late_ms),
)


def one_run(concurrency: int, rounds: int, server_core: int | None) -> Rung:
    """Run one load with `rounds` requests per stream and return the measurement."""
    load = Load(
        mode="concurrency",
        arrivals="closed",
        concurrency=concurrency,
        requests=concurrency * rounds,
    )
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS, cpu=server_core) as server:
        return measured(server, load, output_tokens=OUTPUT_TOKENS)


def median(runs: Sequence[Rung], value_of: Callable[[Rung], float | None]) -> float:
    """Return the median of a value over the runs; NaN if no run has it."""
    known = [value for run in runs if (value := value_of(run)) is not None]
    return statistics.median(known) if known else float("nan")


def report(concurrency: int, runs: Sequence[Rung]) -> None:
    """Print the rows of one concurrency."""
    rate = median(runs, lambda run: run.tokens_per_s)
    used = median(runs, lambda run: run.client_cores)
    queued = median(runs, lambda run: run.client_queued)
    print(
        f"\nconcurrency {concurrency}: {rate:,.0f} tokens/s, {runs[0].requests} requests per run; "
        f"client used {used:.2f} cores and waited for {queued:.2f}"
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
    parser.add_argument("--runs", type=int, default=5, help="number of runs (default: 5)")
    parser.add_argument(
        "--rounds", type=int, default=4, help="number of requests per stream (default: 4)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[64, 256],
        help="numbers of streams (default: 64 256)",
    )
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
