from __future__ import annotations

from pathlib import Path

import pytest
from sweep_files import plan, sweep

from harness.plan.demand import Demand, demand_of
from harness.sweep_file.quantities import duration_ns
from harness.workloads.base import WorkloadError

CHAT = "[{kind: multi-turn, turns: 4, first_tokens: 10, turn_tokens: 10, output_tokens: 10}]"


def demand(folder: Path, **sections: str) -> Demand:
    spec = sweep(folder, **sections)
    [(choice, load)] = spec.pairs
    return demand_of(choice, load, seed=1, max_model_len=spec.max_model_len)


@pytest.mark.parametrize(
    ("concurrency", "requests", "measured", "steady", "reliable"),
    [
        (1, 20, 19, True, False),
        (1, 299, 298, True, False),
        (1, 300, 299, True, True),
        (100, 400, 300, True, True),
        (100, 399, 399, False, True),
        (100, 298, 298, False, False),
    ],
)
def test_p99_rests_on_what_is_sent_after_the_ramp(
    tmp_path: Path, *, concurrency: int, requests: int, measured: int, steady: bool, reliable: bool
) -> None:
    """Each slot's first request is ramp-up; with too few others, the whole run is measured."""
    planned = demand(tmp_path, load=f"[{{concurrency: {concurrency}, requests: {requests}}}]")

    assert (planned.requests, planned.measured, planned.steady, planned.p99_reliable) == (
        requests, measured, steady, reliable,
    )  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 3, 99, 100, 250])
def test_the_remedy_of_a_warning_removes_it(tmp_path: Path, concurrency: int) -> None:
    """With the number of requests in the remedy the P99 is reliable."""
    few = demand(tmp_path, load=f"[{{concurrency: {concurrency}, requests: 250}}]")
    advice = next(
        warning for warning in few.warnings() if warning.startswith("P99 is not reliable")
    )

    more = demand(
        tmp_path,
        load=f"[{{concurrency: {concurrency}, requests: {advice.rsplit(' ', 1)[1]}}}]",
    )

    assert not any("P99" in warning for warning in more.warnings())


def test_the_remedy_for_a_steady_window_has_its_number(tmp_path: Path) -> None:
    """Four requests per slot leave three after ramp-up."""
    [warning] = demand(tmp_path, load="[{concurrency: 100, requests: 399}]").warnings()

    assert "299 requests between ramp-up and drain, a steady window needs 300 (3 ×" in warning
    assert warning.endswith("set requests: 400")


def test_conversations_are_counted_whole(tmp_path: Path) -> None:
    """10 requests of chats with 4 turns are 3 chats, so 8 slots are never full."""
    planned = demand(tmp_path, workloads=CHAT, load="[{concurrency: 8, requests: 10}]")

    assert (planned.conversations, planned.requests, planned.slots) == (3, 12, 3)
    assert (
        "only 3 conversations, fewer than the concurrency 8; set requests: 328"
        in planned.warnings()
    )


def test_tokens_are_counted_as_drawn(tmp_path: Path) -> None:
    """Four turns of 10 + 10 tokens have prompts of 10, 30, 50 and 70 tokens."""
    planned = demand(tmp_path, workloads=CHAT, load="[{concurrency: 1, requests: 4}]")

    assert (planned.prompt_tokens, planned.output_tokens) == (160, 40)
    assert planned.shared_tokens == 10 + 30 + 50


def test_a_rate_counts_conversations(tmp_path: Path) -> None:
    """2 chats per second for 30 s are 60 chats and 240 requests; P99 needs a longer run."""
    planned = demand(tmp_path, workloads=CHAT, load="[{rate: 2, duration: 30 s}]")

    assert (planned.conversations, planned.requests, planned.slots) == (60, 240, None)
    assert planned.span_ns == 30_000_000_000
    assert planned.warnings() == [
        "P99 is not reliable: 240 measured requests, needs 299; set duration: 38 s"
    ]


def test_many_requests_are_counted_without_drawing_all(tmp_path: Path) -> None:
    """The tokens of ten million requests are extrapolated from a part."""
    planned = demand(tmp_path, load="[{concurrency: 10, requests: 10000000}]")

    assert planned.requests == 10_000_000
    assert planned.prompt_tokens == 10_000_000 * 80


def test_a_trace_is_counted_completely_with_skipped_rows(tmp_path: Path) -> None:
    """Rows that are too long are counted as skipped; times scale with the speed-up."""
    rows = [(0, 100), (1000, 9000), (5000, 100)]
    (tmp_path / "t.jsonl").write_text(
        "".join(
            f'{{"timestamp": {ms}, "input_length": {tokens}, "output_length": 9, '
            f'"hash_ids": {list(range(-(-tokens // 512)))}}}\n'
            for ms, tokens in rows
        )
    )

    planned = demand(
        tmp_path,
        workloads="[{kind: trace, path: t.jsonl}]",
        load="[{arrivals: trace, speedup: 0.5}]",
    )

    assert (planned.requests, planned.skipped) == (2, {"context_length": 1})
    assert planned.span_ns == 10_000_000_000
    assert planned.shared_tokens == 100
    assert any("replay more rows" in warning for warning in planned.warnings())


def trace_file(folder: Path, rows: int) -> str:
    """Write a trace with one row per second, and return the section that replays it."""
    (folder / "t.csv").write_text(
        "timestamp_s,input_length,output_length\n" + "".join(f"{i},80,8\n" for i in range(rows))
    )
    return "[{kind: trace, path: t.csv}]"


@pytest.mark.parametrize(("concurrency", "requests"), [(400, 20), (80, 310), (20, 50), (3, 12)])
def test_one_remedy_removes_all_warnings(tmp_path: Path, concurrency: int, requests: int) -> None:
    """The warnings on slots, window and P99 have the same number, which removes all three."""
    few = demand(
        tmp_path,
        workloads=CHAT,
        load=f"[{{concurrency: {concurrency}, requests: {requests}}}]",
    ).warnings()
    [advice] = {warning.rsplit("set requests: ", 1)[1] for warning in few}

    load = f"[{{concurrency: {concurrency}, requests: {advice}}}]"
    assert demand(tmp_path, workloads=CHAT, load=load).warnings() == []


def test_a_remedy_never_exceeds_the_rows_of_the_trace(tmp_path: Path) -> None:
    """60 rows give no reliable P99, and a steady window only at a concurrency of 15."""
    workloads = trace_file(tmp_path, 60)
    closed = demand(tmp_path, workloads=workloads, load="[{concurrency: 20, requests: 60}]")
    opened = demand(tmp_path, workloads=workloads, load="[{rate: 1, duration: 20 s}]")

    window, p99 = closed.warnings()
    assert "needs 60 (3 × concurrency); set concurrency: 15, requests: 60" in window
    assert p99.endswith("use a longer trace; this one has 60 rows to replay")
    [warning] = opened.warnings()
    assert warning.endswith("use a longer trace; this one has 60 rows to replay")
    steady = demand(tmp_path, workloads=workloads, load="[{concurrency: 15, requests: 60}]")
    assert steady.steady


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "{gamma: {cv: 2}}"])
def test_a_trace_that_is_too_short_for_a_rate_is_an_error(tmp_path: Path, arrivals: str) -> None:
    """The starts of every block are compared with the rows; the suggested duration is enough."""
    sections = {
        "workloads": trace_file(tmp_path, 200),
        "load": f"[{{rate: 2, duration: 150 s, arrivals: {arrivals}}}]",
        "blocks": "20",
    }
    with pytest.raises(WorkloadError, match="the trace has only 200 rows to replay") as caught:
        plan(tmp_path, None, **sections)
    [note] = caught.value.__notes__
    advised = note.removeprefix("set duration: ").split(" or less")[0]

    assert plan(tmp_path, None, **{**sections, "load": sections["load"].replace("150 s", advised)})
    assert duration_ns(advised) > 50e9


def test_a_block_with_more_starts_than_rows_is_an_error(tmp_path: Path) -> None:
    """With 100 expected starts and 105 rows the first block has enough rows, another has not."""
    sections = {"workloads": trace_file(tmp_path, 105), "load": "[{rate: 1, duration: 100 s}]"}

    assert plan(tmp_path, None, blocks="1", seed="1", **sections)
    with pytest.raises(WorkloadError, match=r"starts 1\d\d conversations in block \d+") as caught:
        plan(tmp_path, None, blocks="40", seed="1", **sections)
    assert "workloads[0]" in str(caught.value)
    assert "block 0" not in str(caught.value)


def test_a_block_without_a_start_is_an_error(tmp_path: Path) -> None:
    """A rate so low that a block has no conversation raises an error before the first run."""
    with pytest.raises(WorkloadError, match="starts no conversation in block") as caught:
        plan(tmp_path, load="[{rate: 1, duration: 1 s}]", blocks="20")

    assert caught.value.__notes__ == ["set a longer duration or a higher rate"]
