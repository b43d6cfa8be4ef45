"""`harness load`: from the words of the command line to an order, and the result in print."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from adapters.attach import attach
from adapters.base import EngineError
from harness.loading import LoadOrder, load_server
from harness.progress import RequestCount
from harness.spec import AnyWorkload, Load, SpecError
from harness.spec.quantities import duration_ns
from harness.spec.trace_format import guess_format
from results.dialects.block import dialect_block
from results.serving_block import serving_block
from results.store import StoreError
from workloads.lengths import Fixed
from workloads.multi_turn import MultiTurn
from workloads.shared_prefix import SharedPrefix
from workloads.trace import TraceReplay

_KINDS = "shared-prefix, multi-turn or trace:PATH"


def load(arguments: argparse.Namespace) -> int:
    """Load a server that runs, print what came of it; 1 when it failed or its client is INVALID."""
    order = _order(arguments)
    arguments.folder = order.out
    with RequestCount(sys.stderr) as count:
        summary = load_server(order, count.answered)
    (run,) = summary["runs"]
    if arguments.json:
        sys.stdout.write(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.write(serving_block(summary) + "\n")
        if order.dialect is not None:
            sys.stdout.write(f"\n{dialect_block(summary, summary['dialect'])}\n")
    if order.out is not None:
        sys.stderr.write(f"wrote {order.out}\n")
    return 0 if run["status"] == "ok" else 1


def _order(arguments: argparse.Namespace) -> LoadOrder:
    """Return what the command line asks for; the server is asked who it is last."""
    asked = _load(arguments)
    workload = _workload(arguments)
    if arguments.out is not None and arguments.out.exists():
        error = StoreError(f"--out {arguments.out}: exists already; a load never overwrites one")
        error.add_note("name a new folder, or leave --out away to keep nothing")
        raise error
    timeout_ns = _duration("--timeout", arguments.timeout)
    return LoadOrder(
        endpoint=attach(
            arguments.url,
            arguments.model,
            api=arguments.api,
            vocabulary=_vocabulary(arguments.tokenizer),
            wait_s=(_duration("--wait", arguments.wait) or 0) / 1e9,
            waiting=lambda text: print(text, file=sys.stderr),  # noqa: T201  says why nothing moves
        ),
        workload=workload,
        workload_kind=arguments.workload.partition(":")[0],
        load=asked,
        seed=arguments.seed,
        warmup=arguments.warmup,
        workers=arguments.workers,
        timeout_s=None if timeout_ns is None else timeout_ns / 1e9,
        out=arguments.out,
        dialect=arguments.dialect,
    )


def _load(arguments: argparse.Namespace) -> Load:
    if arguments.rate is None:
        for name in ("duration", "arrivals", "max-concurrency"):
            if getattr(arguments, name.replace("-", "_")) is not None:
                raise SpecError(f"--{name} belongs to an open loop: it needs --rate")
        return Load(
            mode="concurrency",
            arrivals="closed",
            concurrency=arguments.concurrency or 1,
            requests=arguments.requests or 100,
        )
    for name in ("concurrency", "requests"):
        if getattr(arguments, name) is not None:
            raise SpecError(f"--{name} belongs to a closed loop; with --rate give --duration")
    duration = _duration("--duration", arguments.duration)
    if not duration:
        raise SpecError("--rate needs --duration, as '60 s'")
    return Load(
        mode="rate",
        arrivals=arguments.arrivals or "poisson",
        rate_rps=arguments.rate,
        max_concurrency=arguments.max_concurrency,
        duration_ns=duration,
    )


def _workload(arguments: argparse.Namespace) -> AnyWorkload:
    kind, _, path = arguments.workload.partition(":")
    output = Fixed(arguments.output_tokens)
    if kind == "shared-prefix" and not path:
        shared = arguments.prompt_tokens // 2
        return SharedPrefix(
            name=kind,
            prefix_tokens=Fixed(shared),
            suffix_tokens=Fixed(arguments.prompt_tokens - shared),
            output_tokens=output,
        )
    if kind == "multi-turn" and not path:
        prompt = Fixed(arguments.prompt_tokens)
        return MultiTurn(
            name=kind,
            turns=arguments.turns,
            first_tokens=prompt,
            turn_tokens=prompt,
            output_tokens=output,
        )
    if kind == "trace" and path:
        file = Path(path)
        return TraceReplay(
            name=kind, format=guess_format(file), path=file, block_tokens=arguments.block_tokens
        )
    raise SpecError(f"--workload {arguments.workload!r} is none; expected {_KINDS}")


def _duration(option: str, text: str | None) -> int | None:
    """Return nanoseconds; a number without a unit is in seconds."""
    if text is None:
        return None
    try:
        plain = text.replace(".", "", 1).isdigit()
        return duration_ns(f"{text} s" if plain else text)
    except ValueError as cause:
        raise SpecError(f"{option}: {cause}") from cause


def _vocabulary(path: Path | None) -> int | None:
    """Return how many ids the tokenizer at `path` knows; None without one. Raises `EngineError`."""
    if path is None:
        return None
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
        ids = document["model"]["vocab"]
        size = len(ids)
    except (OSError, ValueError, KeyError, TypeError) as cause:
        error = EngineError(f"--tokenizer {path}: no tokenizer was found there ({cause})")
        error.add_note("give the model's folder, or its tokenizer.json")
        raise error from cause
    return size
