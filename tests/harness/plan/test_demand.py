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
    """Each slot's first request is ramp; too few after it, and the whole run is the headline."""
    asked = demand(tmp_path, load=f"[{{concurrency: {concurrency}, requests: {requests}}}]")

    assert (asked.requests, asked.measured, asked.steady, asked.p99_reliable) == (
        requests, measured, steady, reliable,
    )  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 3, 99, 100, 250])
def test_what_a_doubt_advises_removes_it(tmp_path: Path, concurrency: int) -> None:
    """Whoever writes the number that the plan names has a reliable P99."""
    few = demand(tmp_path, load=f"[{{concurrency: {concurrency}, requests: 250}}]")
    advice = next(warning for warning in few.warnings() if warning.startswith("P99 not reliable"))

    more = demand(
        tmp_path,
        load=f"[{{concurrency: {concurrency}, requests: {advice.rsplit(' ', 1)[1]}}}]",
    )

    assert not any("P99" in warning for warning in more.warnings())


def test_a_steady_window_is_advised_with_its_number(tmp_path: Path) -> None:
    """Four requests a slot leave three after the ramp."""
    [warning] = demand(tmp_path, load="[{concurrency: 100, requests: 399}]").warnings()

    assert "299 requests between ramp and drain, a steady window needs 3 × 100" in warning
    assert warning.endswith("write requests: 400")


def test_conversations_are_counted_whole(tmp_path: Path) -> None:
    """Requests are turns: 10 of chats with 4 turns are 3 chats, so 8 slots are never full."""
    asked = demand(tmp_path, workloads=CHAT, load="[{concurrency: 8, requests: 10}]")

    assert (asked.conversations, asked.requests, asked.slots) == (3, 12, 3)
    assert "only 3 conversations: never 8 at once; write requests: 328" in asked.warnings()


def test_tokens_are_counted_as_drawn(tmp_path: Path) -> None:
    """Four turns of 10 + 10 tokens: prompts of 10, 30, 50 and 70, each begun by the one before."""
    asked = demand(tmp_path, workloads=CHAT, load="[{concurrency: 1, requests: 4}]")

    assert (asked.prompt_tokens, asked.output_tokens) == (160, 40)
    assert asked.shared_tokens == 10 + 30 + 50


def test_a_rate_counts_conversations(tmp_path: Path) -> None:
    """2 chats a second for 30 s are 60 chats and 240 requests; P99 asks for a longer run."""
    asked = demand(tmp_path, workloads=CHAT, load="[{rate: 2, duration: 30 s}]")

    assert (asked.conversations, asked.requests, asked.slots) == (60, 240, None)
    assert asked.span_ns == 30_000_000_000
    assert asked.warnings() == [
        "P99 not reliable: 240 measured requests, 299 needed; write duration: 38 s"
    ]


def test_many_requests_are_counted_without_drawing_all(tmp_path: Path) -> None:
    """Ten million requests are planned at once; their tokens are scaled from a part."""
    asked = demand(tmp_path, load="[{concurrency: 10, requests: 10000000}]")

    assert asked.requests == 10_000_000
    assert asked.prompt_tokens == 10_000_000 * 80


def test_a_trace_is_counted_whole_with_what_it_leaves_out(tmp_path: Path) -> None:
    """Rows that are too long are counted; times stretch with the speed-up."""
    rows = [(0, 100), (1000, 9000), (5000, 100)]
    (tmp_path / "t.jsonl").write_text(
        "".join(
            f'{{"timestamp": {ms}, "input_length": {tokens}, "output_length": 9, '
            f'"hash_ids": {list(range(-(-tokens // 512)))}}}\n'
            for ms, tokens in rows
        )
    )

    asked = demand(
        tmp_path,
        workloads="[{kind: trace, path: t.jsonl}]",
        load="[{arrivals: trace, speedup: 0.5}]",
    )

    assert (asked.requests, asked.skipped) == (2, {"context_length": 1})
    assert asked.span_ns == 10_000_000_000
    assert asked.shared_tokens == 100
    assert any("replay more rows" in warning for warning in asked.warnings())


def trace_file(folder: Path, rows: int) -> str:
    """Write a trace of so many rows, a second apart, and return the section that replays it."""
    (folder / "t.csv").write_text(
        "timestamp_s,input_length,output_length\n" + "".join(f"{i},80,8\n" for i in range(rows))
    )
    return "[{kind: trace, path: t.csv}]"


@pytest.mark.parametrize(("concurrency", "requests"), [(400, 20), (80, 310), (20, 50), (3, 12)])
def test_one_advice_removes_all_doubts(tmp_path: Path, concurrency: int, requests: int) -> None:
    """Slots, window and P99 are advised one number of requests, and it is enough for all three."""
    few = demand(
        tmp_path,
        workloads=CHAT,
        load=f"[{{concurrency: {concurrency}, requests: {requests}}}]",
    ).warnings()
    [advice] = {warning.rsplit("write requests: ", 1)[1] for warning in few}

    load = f"[{{concurrency: {concurrency}, requests: {advice}}}]"
    assert demand(tmp_path, workloads=CHAT, load=load).warnings() == []


def test_no_more_rows_are_advised_than_the_trace_has(tmp_path: Path) -> None:
    """60 rows give no P99 under any load, and a steady window for 15 at once."""
    workloads = trace_file(tmp_path, 60)
    closed = demand(tmp_path, workloads=workloads, load="[{concurrency: 20, requests: 60}]")
    opened = demand(tmp_path, workloads=workloads, load="[{rate: 1, duration: 20 s}]")

    window, p99 = closed.warnings()
    assert "needs 3 × 20; write concurrency: 15, requests: 60" in window
    assert p99.endswith("the trace has 60 rows to replay: take a longer one")
    [told] = opened.warnings()
    assert told.endswith("the trace has 60 rows to replay: take a longer one")
    steady = demand(tmp_path, workloads=workloads, load="[{concurrency: 15, requests: 60}]")
    assert steady.steady


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "{gamma: {cv: 2}}"])
def test_a_rate_that_a_trace_cannot_feed_is_found_beforehand(tmp_path: Path, arrivals: str) -> None:
    """Every block's draw is held against the rows, and the duration that is advised is enough."""
    sections = {
        "workloads": trace_file(tmp_path, 200),
        "load": f"[{{rate: 2, duration: 150 s, arrivals: {arrivals}}}]",
        "blocks": "20",
    }
    with pytest.raises(WorkloadError, match="the trace has only 200 rows to replay") as caught:
        plan(tmp_path, None, **sections)
    [note] = caught.value.__notes__
    advised = note.removeprefix("write duration: ").split(" or less")[0]

    assert plan(tmp_path, None, **{**sections, "load": sections["load"].replace("150 s", advised)})
    assert duration_ns(advised) > 50e9


def test_a_block_that_draws_more_than_there_is_ends_the_plan(tmp_path: Path) -> None:
    """100 are expected of 105 rows: the first block has enough, one of the others has not."""
    sections = {"workloads": trace_file(tmp_path, 105), "load": "[{rate: 1, duration: 100 s}]"}

    assert plan(tmp_path, None, blocks="1", seed="1", **sections)
    with pytest.raises(WorkloadError, match=r"starts 1\d\d conversations in block \d+") as caught:
        plan(tmp_path, None, blocks="40", seed="1", **sections)
    assert "workloads[0]" in str(caught.value)
    assert "block 0" not in str(caught.value)


def test_a_block_that_would_start_nothing_ends_the_plan(tmp_path: Path) -> None:
    """A rate so low that a block may have no conversation at all is told before the first run."""
    with pytest.raises(WorkloadError, match="starts no conversation in block") as caught:
        plan(tmp_path, load="[{rate: 1, duration: 1 s}]", blocks="20")

    assert caught.value.__notes__ == ["write a longer duration or a higher rate"]
