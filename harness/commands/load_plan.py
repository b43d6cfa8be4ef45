"""From the options of `harness load` to a plan of one run. Options without effect are refused."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters import (
    EngineError,
    EngineSettings,
    RequestShape,
    checked_body,
    checked_headers,
    checked_lora,
)
from harness.adapters.attached import Attached, attach
from harness.commands.arguments import given_for_requests
from harness.experiment import AS_FOUND, RequestSets
from harness.plan import PlannedArm, PlannedRun, RunConditions
from harness.results import count
from harness.results.store import StoreError
from harness.sweep_file import BASELINE_ARM, AnyWorkload, Load, SpecError, duration_ns
from harness.workloads import Fixed, MultiTurn, SharedPrefix
from harness.workloads.trace import TraceReplay, guess_format

_KINDS = "shared-prefix, multi-turn or trace:PATH"
_PROMPT_TOKENS, _OUTPUT_TOKENS, _TURNS, _REQUESTS = 128, 256, 4, 100  # defaults
MOST_REQUESTS = 1_000_000  # of one load: all of them, and their answers, are held in memory
_MOST_TURNS = 10_000
_UNBOUNDED_TOKENS = 1 << 20  # where the server does not report how long a request may be
_BLOCK_TOKENS = 16  # in which prefix hits are counted where the server does not report its own
_WAIT_S = 30.0  # for a server to answer
_TOKEN_WAIT_S = 10.0  # for a model that its server lists, and that refused every request
_LONGEST_NS = 366 * 86_400 * 1_000_000_000
# The options of each kind of workload; they are refused with another kind.
_OF_KINDS = {
    "shared-prefix": ("prompt-tokens", "output-tokens"),
    "multi-turn": ("prompt-tokens", "output-tokens", "turns"),
    "trace": ("format", "time-unit", "block-tokens", "bad-rows"),
}


def planned_load(arguments: argparse.Namespace) -> tuple[PlannedRun, Attached]:
    """Return the run that the command line describes, and the server, which is reached last.

    Raises `SpecError`, `WorkloadError`, `StoreError` or `EngineError`.
    """
    kind, _, path = arguments.workload.partition(":")
    if kind not in _OF_KINDS or (kind == "trace") != bool(path):
        raise SpecError(f"--workload {arguments.workload!r} is none; expected {_KINDS}")
    for name in ("requests", "warmup"):
        if (getattr(arguments, name) or 0) > MOST_REQUESTS:
            raise SpecError(f"--{name}: one load has at most {MOST_REQUESTS:,} requests")
    load = _load(arguments, kind)
    workload = _workload(arguments, kind, path)
    if isinstance(workload, TraceReplay) and load.limit is not None:
        workload = replace(workload, limit=load.limit)
    _check_new(arguments.out)
    if arguments.tokenizer is not None and arguments.api != "completions":
        raise SpecError(
            f"--tokenizer is for prompts of token ids, and --api {arguments.api} takes texts"
        )
    shape = _shape(arguments)
    conditions = _conditions(arguments)
    endpoint = _endpoint(arguments, shape)
    run = PlannedRun(
        key="load",
        arm=_arm(arguments, endpoint, shape),
        block=0,
        group=0,
        workload=workload,
        workload_kind=kind,
        load=load,
        seed=arguments.seed,
        conditions=conditions,
    )
    return run, endpoint


def checked_load(run: PlannedRun, request_sets: RequestSets) -> PlannedRun:
    """Return `run` with the number of its requests. Raises `SpecError` where it cannot be sent."""
    request_set = request_sets.of(run)
    if request_set.requests > MOST_REQUESTS:
        raise SpecError(
            f"{request_set.requests:,} requests are asked; one load has at most {MOST_REQUESTS:,}"
        )
    alive, conversations = run.load.concurrency or 1, len(request_set.conversations)
    if alive > conversations:
        turns = -(-request_set.requests // conversations)
        error = SpecError(
            f"--concurrency {alive:,}: {request_set.requests:,} requests are asked, in "
            f"{count(conversations, 'conversation')}, and more are never alive at once"
        )
        error.add_note(
            f"ask for less concurrency, or for more: --requests {alive * (turns + 3):,} makes a "
            "steady load of it"
        )
        raise error
    if run.load.mode == "concurrency" and run.load.requests is None:  # all rows of a trace
        return replace(run, load=replace(run.load, requests=request_set.requests))
    return run


def _check_new(out: Path | None) -> None:
    if out is not None and os.path.lexists(out):
        error = StoreError(f"--out {out}: exists already; a load never overwrites one")
        error.add_note("name a new folder, or leave --out away to keep nothing")
        raise error


def _conditions(arguments: argparse.Namespace) -> RunConditions:
    timeout_ns = _duration("--timeout", arguments.timeout)
    return RunConditions(
        cache=AS_FOUND,
        workers=arguments.workers,
        request_timeout_s=None if timeout_ns is None else timeout_ns / 1e9,
        max_failed_share=0.0,  # a load that lost a request exits with 1
        warmup_requests=arguments.warmup,
        assumed_block_tokens=_BLOCK_TOKENS,
    )


def _shape(arguments: argparse.Namespace) -> RequestShape:
    """Return what the options set of every request. Raises `SpecError`."""
    try:
        given = given_for_requests(arguments)
        return RequestShape(
            api=arguments.api,
            body=checked_body(given.body),
            headers=checked_headers(given.headers),
            lora=checked_lora(given.lora),
            verify_tls=given.verify_tls,
        )
    except ValueError as fault:
        raise SpecError(str(fault)) from fault


def _endpoint(arguments: argparse.Namespace, shape: RequestShape) -> Attached:
    """Return the server, once it answers. Raises `EngineError`."""
    wait_ns = _duration("--wait", arguments.wait)
    return attach(
        arguments.url,
        arguments.model,
        shape=shape,
        vocabulary=_vocabulary(arguments.tokenizer),
        wait_s=_WAIT_S if wait_ns is None else wait_ns / 1e9,
        token_wait_s=_TOKEN_WAIT_S if wait_ns is None else None,
        api_key_env=arguments.api_key_env,
        model_check=not arguments.no_model_check,
        metrics_urls=tuple(arguments.metrics_url),
        waiting=_say,
    )


def _arm(arguments: argparse.Namespace, endpoint: Attached, shape: RequestShape) -> PlannedArm:
    """Return the server as the one arm of a plan: no toggle is set, its hardware is not known."""
    settings = EngineSettings(
        model=arguments.model,
        gpu="unknown",
        gpu_count=1,
        max_model_len=endpoint.max_model_len or _UNBOUNDED_TOKENS,
        toggles={},
        url=arguments.url,
        api_key_env=arguments.api_key_env,
        model_check=not arguments.no_model_check,
        metrics_urls=tuple(arguments.metrics_url),
        shape=shape,
    )
    return PlannedArm(
        name=BASELINE_ARM,
        engine="url",
        label="url",
        engine_version=endpoint.engine_version,
        engine_kind=endpoint.engine_kind,
        settings=settings,
        flipped={},
        launch_line=("attach", arguments.url, arguments.model),
        gpus=None,
    )


def _say(text: str) -> None:
    """Say why nothing moves, where somebody listens."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def _load(arguments: argparse.Namespace, kind: str) -> Load:
    if arguments.arrivals == "trace":
        return _at_the_traces_times(arguments, kind)
    if arguments.speedup is not None:
        raise SpecError("--speedup belongs to a trace's own times: it needs --arrivals trace")
    if arguments.rate is None:
        _refuse(arguments, "belongs to an open loop: it needs --rate", *_OPEN)
        few = None if kind == "trace" else _REQUESTS
        return Load(
            mode="concurrency",
            arrivals="closed",
            concurrency=arguments.concurrency or 1,
            requests=arguments.requests or few,
        )
    _refuse(arguments, "belongs to a closed loop; with --rate give --duration", *_CLOSED)
    duration = _duration("--duration", arguments.duration)
    if duration is None:
        raise SpecError("--rate needs --duration, as '60 s'")
    expected = arguments.rate * duration / 1e9
    if expected > MOST_REQUESTS:
        raise SpecError(
            f"--rate {arguments.rate:g} for {duration / 1e9:g} s starts about {expected:,.0f} "
            f"conversations; one load has at most {MOST_REQUESTS:,} requests"
        )
    return Load(
        mode="rate",
        arrivals=arguments.arrivals or "poisson",
        rate_rps=arguments.rate,
        max_concurrency=arguments.max_concurrency,
        duration_ns=duration,
    )


_OPEN = ("duration", "arrivals", "max-concurrency")
_CLOSED = ("concurrency", "requests")


def _at_the_traces_times(arguments: argparse.Namespace, kind: str) -> Load:
    if kind != "trace":
        raise SpecError("--arrivals trace takes its times from a trace: --workload trace:PATH")
    _refuse(arguments, "does not go with --arrivals trace", "rate", "duration", "concurrency")
    return Load(
        mode="trace",
        arrivals="trace",
        limit=arguments.requests,
        speedup=arguments.speedup or 1.0,
        max_concurrency=arguments.max_concurrency,
    )


def _refuse(arguments: argparse.Namespace, why: str, *names: str) -> None:
    """Raise `SpecError` for the first of these options that was given."""
    for name in names:
        if getattr(arguments, name.replace("-", "_")) is not None:
            raise SpecError(f"--{name} {why}")


def _workload(arguments: argparse.Namespace, kind: str, path: str) -> AnyWorkload:
    others = {name for names in _OF_KINDS.values() for name in names} - {*_OF_KINDS[kind]}
    _refuse(arguments, f"says nothing of --workload {kind}", *sorted(others))
    if kind == "trace":
        file = Path(path)
        return TraceReplay(
            name=kind,
            format=arguments.format or guess_format(file),
            path=file,
            block_tokens=arguments.block_tokens,
            time_unit=arguments.time_unit,
            bad_rows=arguments.bad_rows or "refuse",
        )
    prompt_tokens = arguments.prompt_tokens or _PROMPT_TOKENS
    output = Fixed(arguments.output_tokens or _OUTPUT_TOKENS)
    if kind == "shared-prefix":
        shared = prompt_tokens // 2
        return SharedPrefix(
            name=kind,
            prefix_tokens=Fixed(shared),
            suffix_tokens=Fixed(prompt_tokens - shared),
            output_tokens=output,
        )
    turns = arguments.turns or _TURNS
    if turns > _MOST_TURNS:
        raise SpecError(f"--turns {turns:,}: a chat has at most {_MOST_TURNS:,} turns")
    return MultiTurn(
        name=kind,
        turns=turns,
        first_tokens=Fixed(prompt_tokens),
        turn_tokens=Fixed(prompt_tokens),
        output_tokens=output,
    )


def _duration(option: str, text: str | None) -> int | None:
    """Return nanoseconds, above 0; a number without a unit is in seconds."""
    if text is None:
        return None
    try:
        plain = text.replace(".", "", 1).isdigit()
        time_ns = duration_ns(f"{text} s" if plain else text)
    except ValueError as cause:
        raise SpecError(f"{option}: {cause}") from cause
    if not 0 < time_ns <= _LONGEST_NS:
        raise SpecError(f"{option}: expected more than 0 and at most a year; found {text!r}")
    return time_ns


def _vocabulary(path: Path | None) -> int | None:
    """Return how many ids the tokenizer at `path` knows; None without one. Raises `EngineError`."""
    if path is None:
        return None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not os.path.isfile(file):  # noqa: PTH113  Path's own raises for a name that is too long
        raise _no_tokenizer(path, "it is not a regular file")
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        raise _no_tokenizer(path, str(cause)) from cause
    model = document.get("model") if isinstance(document, dict) else None
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict | list) or len(ids) < 2:
        raise _no_tokenizer(path, f"{file.name} is JSON, but has no vocabulary at model.vocab")
    return len(ids)


def _no_tokenizer(path: Path, why: str) -> EngineError:
    error = EngineError(f"--tokenizer {path}: no tokenizer was found there ({why})")
    error.add_note("give the model's folder, or its tokenizer.json")
    return error
