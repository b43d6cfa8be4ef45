"""Measure the client's processor time per token, and compare it with the minimum of any client.

    python benchmarks/cost.py [--repeats 5] [--other 'NAME=COMMAND' …]

Concurrency 64, 128 prompt ids, 256 output tokens. The result is the slope between 256 and 1,024
requests, which excludes the start-up, as the median over the repeats. The clients alternate. The
load phase is from the first send to the end of the last answer; the whole command is
`harness load … --json` from its start to its printed result. The floor is
benchmarks/floor/floor.c, which reads, stamps and counts, and stores nothing; it needs a C compiler
(`cc`).

`--other` measures the whole command of another client. It replaces {url} and {requests}:

    --other 'vllm=vllm bench serve --base-url {url} --model reference --tokenizer DIR
             --dataset-name random --random-input-len 128 --random-output-len 256
             --num-prompts {requests} --max-concurrency 64 --ignore-eos --disable-tqdm'

Other processes on the machine affect the results, though less than they affect latencies. If you
cannot stop them, run `chrt --rr 1 python benchmarks/cost.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.reference.process import reference_process
from harness.reference.rungs import ITL_MS, TTFT_MS, cores

CONCURRENCY, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128, 256
FLOOR = Path(__file__).with_name("floor") / "floor.c"
VARIANTS = {"usage at the end": True, "running usage": False}


@dataclass(frozen=True)
class Cost:
    """Processor time, user and system, in seconds."""

    load_s: float | None  # load phase only; None: not reported by the client
    whole_s: float


Client = Callable[[str, int], Cost]  # URL of the server, requests


def run(
    command: Sequence[str], stdin: bytes = b"", good: Sequence[int] = (0,)
) -> tuple[str, float]:
    """Run `command`; return its stdout and the processor time of it and its children.

    Raises `SystemExit` with its stderr when the exit code is not in `good`.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(command, stdin=given, stdout=stdout, stderr=stderr)
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
        stdout.seek(0)
        stderr.seek(0)
        text, errors = (file.read().decode("utf-8", "replace") for file in (stdout, stderr))
    if process.returncode not in good:
        sys.exit(f"{shlex.join(command)}\nexited with code {process.returncode}:\n{errors}")
    return text, used.ru_utime + used.ru_stime


def floor_client(program: Path) -> Client:
    """Return the floor program as a client."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = {
        "model": "reference",
        "prompt": list(range(1000, 1000 + PROMPT_TOKENS)),
        "max_tokens": OUTPUT_TOKENS,
        "stream": True,
        "ignore_eos": True,
        "stream_options": options,
    }
    body = json.dumps(request).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"

    def client(url: str, requests: int) -> Cost:
        numbers = (url.rpartition(":")[2], CONCURRENCY, requests, OUTPUT_TOKENS)
        text, whole_s = run([str(program), *map(str, numbers)], head.encode() + body)
        return Cost(load_s=json.loads(text)["cpu_s"], whole_s=whole_s)

    return client


def harness_load(url: str, requests: int) -> Cost:
    """Return the cost of `harness load … --json`.

    Exit code 1 is accepted too: latencies may be invalid on a busy machine, but the cost is valid.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = {
            "--model": "reference",
            "--concurrency": CONCURRENCY,
            "--requests": requests,
            "--prompt-tokens": PROMPT_TOKENS,
            "--output-tokens": OUTPUT_TOKENS,
            "--workers": 1,
            "--out": out,
        }
        words = [str(word) for option in options.items() for word in option]
        command = [sys.executable, "-P", "-m", "harness.cli", "load", url, "--json", *words]
        text, whole_s = run(command, good=(0, 1))
        if json.loads(text)["runs"][0]["counts"]["ok"] != requests:
            sys.exit(f"requests failed: {shlex.join(command)}")
        [manifest] = out.glob("*/manifest.json")
        workers = json.loads(manifest.read_text(encoding="utf-8"))["client"]["workers"]
    return Cost(load_s=sum(one["cpu_s"] for one in workers), whole_s=whole_s)


def other_client(command: str) -> Client:
    """Return a command as a client."""

    def client(url: str, requests: int) -> Cost:
        words = [word.format(url=url, requests=requests) for word in shlex.split(command)]
        return Cost(load_s=None, whole_s=run(words)[1])

    return client


def measured(client: Client, requests: int, server_core: int | None, *, usage_at_end: bool) -> Cost:
    """Return the cost of one load on a new server."""
    with reference_process(
        ttft_ms=TTFT_MS, itl_ms=ITL_MS, cpu=server_core, usage_at_end=usage_at_end
    ) as server:
        return client(server.target().url, requests)


def slope(few: Cost, many: Cost, tokens: int) -> tuple[float | None, float]:
    """Return µs per token of the load phase and of the whole command, from two loads."""
    load = None
    if few.load_s is not None and many.load_s is not None:
        load = (many.load_s - few.load_s) / tokens * 1e6
    return load, (many.whole_s - few.whole_s) / tokens * 1e6


def report(title: str, slopes: dict[str, list[tuple[float | None, float]]]) -> None:
    """Print the table of one variant: medians, and their ratio to the floor."""
    print(f"\n{title:24} {'load phase':>21} {'whole command':>21}")
    print(f"{'µs per token':24} {'median':>12} {'× floor':>8} {'median':>12} {'× floor':>8}")
    middle = {
        name: tuple(
            statistics.median(known) if (known := [one for one in column if one is not None]) else 0
            for column in zip(*found, strict=True)
        )
        for name, found in slopes.items()
    }
    floor = middle.get("floor", (0, 0))
    for name, values in middle.items():
        columns = ""
        for value, least in zip(values, floor, strict=True):
            shown = f"{value:12.2f}" if value else f"{'–':>12}"
            columns += f" {shown} {value / least:8.2f}" if value and least else f" {shown} {'–':>8}"
        print(f"{name:24}{columns}")


def compiled(folder: Path) -> Path | None:
    """Compile the floor program and return its path; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("the floor is skipped: no C compiler `cc` found")
        return None
    program = folder / "floor"
    run([compiler, "-O2", "-o", str(program), str(FLOOR)])
    return program


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="number of repeats (default: 5)")
    parser.add_argument(
        "--requests",
        type=int,
        nargs=2,
        default=[256, 1024],
        help="numbers of requests of the two loads (default: 256 1024)",
    )
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another client to measure; may be repeated",
    )
    arguments = parser.parse_args()
    few, many = arguments.requests
    with tempfile.TemporaryDirectory() as folder, cores() as pinned:
        program = compiled(Path(folder))
        clients: dict[str, Client] = {} if program is None else {"floor": floor_client(program)}
        clients["harness load"] = harness_load
        for other in arguments.other:
            name, _, command = other.partition("=")
            clients[name] = other_client(command)
        for title, usage_at_end in VARIANTS.items():
            slopes: dict[str, list[tuple[float | None, float]]] = {name: [] for name in clients}
            for _ in range(arguments.repeats):
                for name, client in clients.items():
                    low, high = (
                        measured(client, requests, pinned.server, usage_at_end=usage_at_end)
                        for requests in (few, many)
                    )
                    slopes[name].append(slope(low, high, (many - few) * OUTPUT_TOKENS))
            report(title, slopes)


if __name__ == "__main__":
    main()
