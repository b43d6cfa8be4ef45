"""Measure the effect of more load generator processes at increasing load.

    python benchmarks/scaling.py [--workers 1 2] [--streams 64 128 256 512] [--runs 3]

For each number of processes and of streams (a token every 10 ms), prints tokens/s, the error of
every token's stamp (client − server, p50 and p99 in ms, median of the runs), and the processor time
of all processes together. On two cores or more the reference server has its own core. Processes
share the other cores, so more processes than these cores cannot help.

If you cannot stop other processes, run `chrt --rr 1 python benchmarks/scaling.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

from harness.calibration.finding import Rung
from harness.reference.process import reference_process
from harness.reference.rungs import ITL_MS, TTFT_MS, cores, fits, measured
from harness.sweep_file import Load

OUTPUT_TOKENS, ROUNDS = 128, 3


def one_run(workers: int, streams: int, server_core: int | None) -> Rung:
    """Run one load with `workers` processes and return the measurement."""
    load = Load(
        mode="concurrency", arrivals="closed", concurrency=streams, requests=streams * ROUNDS
    )
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS, cpu=server_core) as server:
        return measured(server, load, output_tokens=OUTPUT_TOKENS, workers=workers)


def row(workers: int, streams: int, runs: list[Rung]) -> str:
    """Return one line of the table."""

    def median(value_of: Callable[[Rung], float]) -> float:
        return statistics.median(value_of(run) for run in runs)

    used = median(lambda run: run.client_cores or float("nan"))
    return (
        f"{workers:7} {streams:8} {median(lambda run: run.tokens_per_s):10,.0f} "
        f"{median(lambda run: run.each_ms.p50):9.3f} {median(lambda run: run.each_ms.p99):9.3f} "
        f"{median(lambda run: run.server_late_ms.p99):14.3f} {used:13.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of load generator processes (default: 1 2)",
    )
    parser.add_argument(
        "--streams",
        type=int,
        nargs="+",
        default=[64, 128, 256, 512],
        help="numbers of streams (default: 64 128 256 512)",
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs (default: 3)")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, one for the server")
    print("workers  streams   tokens/s  each p50  each p99  server late p99  client cores")
    with cores() as pinned:
        for workers in arguments.workers:
            for streams in filter(fits, arguments.streams):
                runs = [one_run(workers, streams, pinned.server) for _ in range(arguments.runs)]
                print(row(workers, streams, runs), flush=True)


if __name__ == "__main__":
    main()
