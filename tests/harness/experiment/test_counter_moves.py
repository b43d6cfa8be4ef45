"""Counters that are not of this client's requests alone are not used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from command_line import harness
from known_runs import known_record
from stand_in import settings

from harness.adapters.base import ServerCounters, Target
from harness.adapters.http_queries import query
from harness.adapters.vllm.adapter import VllmAdapter
from harness.experiment.counter_moves import own_traffic, settled_moves
from harness.results.store import RequestRecord
from harness.results.store.manifest import manifest_of
from harness.results.warnings.cache_checks import counters_left_out
from harness.workloads import Conversation, Segment, Turn

IDS = Target(url="http://h", model="m", vocabulary=1000)
CHAT = Target(url="http://h", model="m", api="chat")
COUNTED = [
    known_record(i, [(10.0, 1), (20.0, 99)], conversation=f"c{i}", prompt_tokens=200)
    for i in range(10)
]  # 2,000 prompt tokens, 1,000 output tokens
CONVERSATIONS = tuple(
    Conversation(
        conversation_id=f"c{i}", turns=(Turn(prompt=(Segment(7, 200),), output_tokens=100),)
    )
    for i in range(10)
)


def fault(
    records: list[RequestRecord], prompt: int | None, output: int | None, target: Target = IDS
) -> str | None:
    """Return why moves of the counters are not used."""
    moves = ServerCounters(prompt_tokens=prompt, output_tokens=output)
    traffic = own_traffic(records, CONVERSATIONS, target)
    kept, _, reason = settled_moves(lambda: (moves, ()), traffic, lambda _: None)
    assert (kept == moves) == (reason is None)
    return reason


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [
        (2000, 1000, None),
        (2020, 1020, None),  # 20 tokens more are a probe
        (2000, 1021, "counted 1,021 output tokens, this client's requests explain 1,000"),
        (2021, 1000, "counted 2,021 prompt tokens"),
        (9000, 4000, "other clients"),
        (2000, 500, "one replica of several"),
        (1000, 1000, "one replica of several"),
        (0, 0, "one replica of several"),
        (1980, 980, None),
        (None, 1000, None),
        (None, None, None),
        (None, 3000, "other clients"),
    ],
)
def test_totals_are_held_against_what_was_sent_and_received(
    prompt: int | None, output: int | None, words: str | None
) -> None:
    """More than the client's own are other clients', less are those of one of several replicas."""
    found = fault(COUNTED, prompt, output)

    assert (found is None) if words is None else (words in (found or ""))


def test_one_percent_of_much_traffic_is_no_other_client() -> None:
    """Both limits must be exceeded: 20 tokens, and 1 %."""
    many = COUNTED * 100

    assert fault(many, 201_900, 100_900) is None
    assert "other clients" in (fault(many, 203_000, 100_000) or "")


@pytest.mark.parametrize("error", ["timeout", "reset", "http_500"])
def test_failed_requests_may_have_been_computed_or_not(error: str) -> None:
    """A cancelled request moves the totals by anything up to all that it requested."""
    failed = [replace(one, error_kind=error, output_tokens_source=None) for one in COUNTED[:3]]
    records = [*failed, *COUNTED[3:]]

    assert fault(records, 1400, 700) is None
    assert fault(records, 2000, 1000) is None
    assert "other clients" in (fault(records, 2100, 1000) or "")
    assert "one replica" in (fault(records, 1400, 600) or "")


def test_without_usage_the_prompt_of_a_template_is_a_range() -> None:
    """Text has about as many tokens as words, and a template adds some."""
    untold = [replace(one, output_tokens_source="client") for one in COUNTED]

    assert fault(untold, 6000, 1000, CHAT) is None
    assert fault(untold, 2000, 1000, CHAT) is None
    assert "other clients" in (fault(untold, 7000, 1000, CHAT) or "")


def test_prompts_that_were_found_in_the_cache_may_be_counted_apart() -> None:
    """Some engines count computed prompt tokens only."""
    moves = ServerCounters(prompt_tokens=500, cached_prompt_tokens=1500, output_tokens=1000)
    traffic = own_traffic(COUNTED, CONVERSATIONS, IDS)

    assert settled_moves(lambda: (moves, ()), traffic, lambda _: None) == (moves, (), None)


def test_a_server_that_counts_late_is_read_again() -> None:
    """The last request may be counted a moment after its last token."""
    late = ServerCounters(prompt_tokens=1800, output_tokens=900)
    all_of_them = ServerCounters(prompt_tokens=2000, output_tokens=1000)
    reads: Iterator[ServerCounters] = iter([late, late, all_of_them])
    waits: list[float] = []

    found = settled_moves(
        lambda: (next(reads), ()), own_traffic(COUNTED, CONVERSATIONS, IDS), waits.append
    )

    assert found == (all_of_them, (), None)
    assert len(waits) == 2


def test_a_run_beside_another_client_has_no_server_counts() -> None:
    """The load is measured all the same; the hit rate is absent, and a warning gives the reason."""
    with VllmAdapter().start(settings()) as endpoint:
        target, stop = endpoint.transport, threading.Event()

        def other() -> None:
            body = {"model": target.model, "prompt": [1] * 500, "max_tokens": 5}
            while not stop.is_set():
                query(target.url, "/v1/completions", body, timeout_s=20.0)

        beside = threading.Thread(target=other)
        words = ("load", target.url, "--model", target.model, "--concurrency", "2")
        sizes = ("--requests", "40", "--prompt-tokens", "64", "--output-tokens", "8")
        alone = harness(*words, *sizes)
        beside.start()
        try:
            shared = harness(*words, *sizes)
        finally:
            stop.set()
            beside.join()

    told = " ".join(shared.stdout.split())
    assert "other clients use it" not in " ".join(alone.stdout.split())
    assert "other clients use it" in told
    assert "the prefix hit rate is absent" in told


def test_the_warning_names_the_option_that_adds_replicas() -> None:
    """A stored run without the field has no such warning."""
    plain = {"key": "k", "arm": "a", "block": 0, "engine": "url", "label": "url", "workload": "w"}
    facts = {**plain, "load": {"mode": "concurrency", "value": 1}, "status": "ok"}
    metrics = None
    told = counters_left_out(metrics, manifest_of({**facts, "counters_left_out": "why"}))  # type: ignore[arg-type]

    assert told is not None
    assert "--metrics-url" in told.remedy
    assert counters_left_out(metrics, manifest_of(facts)) is None  # type: ignore[arg-type]
