"""TensorRT-LLM's records, added up, tell what was cached, cut, joined and drafted; or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.adapters.base import ServerCounters
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.tensorrt_llm.stats import (
    CountingRules,
    IterationTotals,
    RequestTotals,
    counters_of,
)

NO_METRICS = ServerMetrics("")
RULES = CountingRules(prefix_caching=True, counts_admissions=True, max_prompt_tokens=2048)


def record(number: int, **changes: Any) -> dict[str, Any]:
    """Return an iteration that takes nothing in and ends nothing; keys are the server's."""
    batch = {"numContextRequests": 0, "numGenRequests": 0, "numCtxTokens": 0}
    found: dict[str, Any] = {
        "iter": number,
        "numActiveRequests": 1,
        "numNewActiveRequests": 0,
        "numCompletedRequests": 0,
        "inflightBatchingStats": batch,
        "specDecodingStats": None,
    }
    for key, value in changes.items():
        if key in ("numContextRequests", "numGenRequests", "numCtxTokens", "numPausedRequests"):
            found["inflightBatchingStats"] = {**found["inflightBatchingStats"], key: value}
        else:
            found[key] = value
    return found


def blocks(reused: int, missed: int = 0) -> dict[str, int]:
    return {
        "reusedBlocks": reused,
        "missedBlocks": missed,
        "tokensPerBlock": 32,
        "maxNumBlocks": 1000,
    }


# Two requests of 100 prompt tokens: the first comes in two parts, of the second 64 are cached.
TWO = [
    record(7, numNewActiveRequests=1, numContextRequests=1, numCtxTokens=64),
    record(8, numContextRequests=1, numCtxTokens=36, kvCacheStats=blocks(0, 4)),
    record(9, numGenRequests=1),
    record(
        10,
        numActiveRequests=2,
        numNewActiveRequests=1,
        numContextRequests=1,
        numGenRequests=1,
        numCtxTokens=36,
        kvCacheStats=blocks(2, 6),
    ),
    record(11, numActiveRequests=2, numGenRequests=2, numCompletedRequests=2),
]


def totals(*records: Any) -> IterationTotals:
    found = IterationTotals()
    found.add(records)
    return found


def counters(*records: Any, metrics: str = "", rules: CountingRules = RULES) -> ServerCounters:
    return counters_of(totals(*records), RequestTotals(), ServerMetrics(metrics), rules)


def test_an_older_versions_tokens_follow_from_what_was_computed_and_what_was_reused() -> None:
    """It counts no prompt tokens: 136 were computed and two blocks of 32 found."""
    seen = counters(*TWO)

    assert (seen.prompt_tokens, seen.cached_prompt_tokens) == (200, 64)
    assert seen.looked_up_prompt_tokens == 200
    assert seen.output_tokens is None


def test_a_newer_versions_own_counts_of_tokens_come_first() -> None:
    """Where it counts tokens nothing is derived from blocks."""
    seen = counters(
        *TWO,
        metrics="trtllm_prompt_tokens_total 205.0\ntrtllm_prompt_cached_tokens_total 70.0\n"
        "trtllm_generation_tokens_total 9.0\n",
    )

    assert (seen.prompt_tokens, seen.cached_prompt_tokens, seen.output_tokens) == (205, 70, 9)


def test_iterations_tell_steps_batches_and_joining() -> None:
    """Five steps; their sequences; one step with both kinds; one sequence joined another."""
    seen = counters(*TWO)

    assert (seen.steps, seen.sequence_steps) == (5, 6)  # four past their prompt, two first tokens
    assert (seen.mixed_steps, seen.peak_running, seen.late_admissions) == (1, 2, 1)
    assert seen.preemptions == 0
    assert seen.graph_steps is seen.split_prefills is seen.evicted_blocks is None


def test_a_batch_that_only_shrinks_was_joined_by_nobody() -> None:
    """A static batch: all prompts at once, then fewer and fewer sequences."""
    seen = counters(
        record(1, numNewActiveRequests=3, numContextRequests=3, numCtxTokens=90),
        record(2, numActiveRequests=3, numGenRequests=3, numCompletedRequests=1),
        record(3, numActiveRequests=2, numGenRequests=2, numCompletedRequests=2),
        record(5, numNewActiveRequests=2, numContextRequests=2, numCtxTokens=60),
        record(6, numActiveRequests=2, numGenRequests=2, numCompletedRequests=2),
    )

    assert (seen.late_admissions, seen.peak_running) == (0, 3)


def test_where_prompts_are_cut_a_static_batch_tells_nothing_of_joining() -> None:
    """Parts of its own prompts come when its other sequences are past theirs."""
    rules = CountingRules(prefix_caching=True, counts_admissions=False, max_prompt_tokens=2048)

    assert counters(*TWO, rules=rules).late_admissions is None


def test_parts_beyond_one_a_request_are_cut_prompts() -> None:
    """One for sure; a second run's come on top, however few they are."""
    found = totals(*TWO)
    assert found.split_prompts(64) == 1

    found.add(TWO)
    assert found.split_prompts(64) == 2
    assert found.split_prompts(64) == 2


def test_of_requests_on_their_way_no_parts_are_counted_yet() -> None:
    """A prompt half computed is not one that was cut, until it is done."""
    found = totals(*TWO[:2])

    assert found.busy
    assert found.split_prompts(64) == 0


def test_prompts_that_fit_are_not_cut() -> None:
    """As many parts as requests, whatever else happened."""
    whole = record(1, numNewActiveRequests=2, numContextRequests=2, numCtxTokens=80)

    assert totals(whole, record(2, numCompletedRequests=2)).split_prompts(64) == 0


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (None, (0, None, None)),
        ({"numDraftTokens": 0, "numAcceptedTokens": 0, "numRequestsWithDraftTokens": 0}, (0, 0, 0)),
        ({"numDraftTokens": 8, "numAcceptedTokens": 5, "numRequestsWithDraftTokens": 2}, (8, 5, 2)),
    ],
)
def test_without_speculation_there_are_no_statistics_of_it(
    stats: dict[str, int] | None, expected: tuple[int | None, ...]
) -> None:
    """That nothing was drafted is known; what was accepted of nothing is not."""
    seen = counters(record(1, numGenRequests=2, specDecodingStats=stats))

    assert (seen.drafted_tokens, seen.accepted_tokens, seen.verify_steps) == expected


def test_iterations_that_were_never_told_make_all_sums_worthless() -> None:
    """A gap among busy iterations is a loss; one while nothing was on its way is none."""
    assert totals(*TWO[:3], TWO[4]).lost is None  # one idle turn of the loop may leave no record
    idle = totals(*TWO, record(90, numNewActiveRequests=1, numContextRequests=1))
    lost = totals(*TWO[:3], record(60, numGenRequests=1))

    assert idle.lost is None
    assert lost.lost == "50 iterations before number 60 were never told"
    seen = counters_of(lost, RequestTotals(), NO_METRICS, RULES)
    assert seen == ServerCounters()


def test_what_finished_requests_tell_outlives_lost_iterations() -> None:
    """That something was found in a cache that is off is seen all the same."""
    lost = totals(*TWO[:3], record(60, numGenRequests=1))
    requests = RequestTotals()
    block_counts = {"num_reused_blocks": 3, "num_missed_blocks": 1}
    drafts = {"total_draft_tokens": 8, "total_accepted_draft_tokens": 5}
    told = {"kv_cache_metrics": block_counts, "speculative_decoding": drafts}
    requests.add([{"request_id": 1, "perf_metrics": told}, {"perf_metrics": {}}, "nonsense"])

    seen = counters_of(lost, requests, NO_METRICS, RULES)

    assert requests.finished == 3
    assert (seen.cached_prompt_tokens, seen.prompt_tokens) == (96, 128)
    assert (seen.drafted_tokens, seen.accepted_tokens) == (8, 5)
    assert seen.steps is seen.peak_running is None


def test_snapshots_that_come_now_and_then_are_the_last_ones() -> None:
    """Newer versions leave the blocks out of most records."""
    found = totals(*TWO, record(12), "nonsense", record(13, kvCacheStats={}))

    assert (found.reused_blocks, found.block_tokens, found.most_blocks) == (2, 32, 1000)


def test_a_server_that_told_nothing_counts_nothing_of_prompts() -> None:
    """Not even that nothing was cached."""
    seen = counters()

    assert seen.prompt_tokens is seen.cached_prompt_tokens is None
