from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import pytest
from known_runs import CLOSED, OPEN, analysed, flips

from harness.results.effects import effects, verdict
from harness.results.names import headline_metrics
from harness.results.statistics import Ratio
from harness.results.store import LoadFacts
from harness.results.summary import AnalysedRun, Values, WindowFacts

TOKENS, TTFT, TPOT = "output_tokens_per_s", "ttft_ms.p50", "tpot_ms.p50"
NOISE = (1.01, 0.99, 1.005, 0.995, 1.0)  # one factor a block


def flip(toggle: str, value: str, base: str, **implied: str) -> dict[str, Any]:
    """Return the `flipped` entry of a run with one flip."""
    return {toggle: {"value": value, "base": base, "implied": implied}}


def arm(
    name: str,
    factor: float = 1.0,
    *,
    blocks: Sequence[int] = range(5),
    noise: Sequence[float] = NOISE,
    flipped: dict[str, Any] | None = None,
    **changes: Any,
) -> list[AnalysedRun]:
    """Return an arm's runs: throughput 1000 × factor, TTFT 200 / factor, with noise per block."""
    return [
        analysed(
            {
                TOKENS: 1000 * (1 + block) * factor * noise[block],
                TTFT: 200 * (1 + block) / factor / noise[block],
                TPOT: 20.0 * (1 + block),
                "ttft_ms.p99": 400.0,
            },
            **{
                "arm": name,
                "block": block,
                "seed": 100 + block,
                "flipped": flips(flipped or {}),
                **changes,
            },
        )
        for block in blocks
    ]


def changed(run: AnalysedRun, values: Values | None = None, **changes: Any) -> AnalysedRun:
    """Return a run with other values, and its row with `changes`."""
    clock = changes.pop("clock", run.clock)
    kept = run.metrics if values is None else values
    return replace(run, row=replace(run.row, **changes), metrics=kept, clock=clock)


def compared(
    runs: Sequence[AnalysedRun], design: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the effects of runs as `summary.json` has them, and the notes."""
    found, notes = effects(runs, design)
    return [asdict(one) for one in found], notes


def wild_toggles(count: int) -> list[AnalysedRun]:
    """Return the runs of toggles that do nothing, with a large spread."""
    return [
        run
        for i in range(count)
        for run in arm(f"w{i}", noise=np.roll((1.2, 0.8, 1.1, 0.9, 1.0), i).tolist())
    ]


OPEN_LOAD = LoadFacts.model_validate(OPEN)
NOISY = (1.06, 0.95, 1.04, 0.97, 0.98)
STEADY = (1.0,) * 5
BASE = arm("baseline", noise=STEADY)
AGAIN = arm("baseline-again", noise=STEADY)
OFF = flip("prefix_caching", "off", "on")


def effect(runs: Sequence[AnalysedRun], name: str, metric: str = TOKENS) -> dict[str, Any]:
    """Return the one effect of an arm on a metric."""
    (found,) = (e for e in compared(runs)[0] if (e["arm"], e["metric"]) == (name, metric))
    return found


def test_a_two_valued_toggle_is_on_over_off_whichever_was_the_base() -> None:
    """Half as fast when off is a ratio of 2, and so is twice as fast when on."""
    off = effect([*BASE, *arm("pc=off", 0.5, flipped=OFF)], "pc=off")
    on = effect([*BASE, *arm("pc=on", 2.0, flipped=flip("prefix_caching", "on", "off"))], "pc=on")

    assert (off["ratio"], off["ratio_of"]) == (pytest.approx(2, rel=0.01), "on/off")
    assert (on["ratio"], on["ratio_of"]) == (pytest.approx(2, rel=0.01), "on/off")
    assert (off["toggle"], off["value"], on["value"]) == ("prefix_caching", "off", "on")
    assert off["treated"] == pytest.approx(off["baseline"] / 2, rel=0.01)


def test_any_other_toggle_is_value_over_base() -> None:
    """fp8 over auto, off over ngram: only on and off are turned round."""
    fp8 = arm("kv=fp8", 1.5, flipped=flip("kv_cache_dtype", "fp8", "auto"))
    spec = arm("spec=off", 0.5, flipped=flip("speculative", "off", "ngram(tokens=4)"))

    one, other = effect([*BASE, *fp8], "kv=fp8"), effect([*BASE, *spec], "spec=off")

    assert (one["ratio"], one["ratio_of"]) == (pytest.approx(1.5, rel=0.01), "fp8/auto")
    assert (other["ratio"], other["ratio_of"]) == (
        pytest.approx(0.5, rel=0.01),
        "off/ngram(tokens=4)",
    )


def test_what_a_value_drags_along_is_part_of_the_effect() -> None:
    """Without paged KV there is no prefix caching, and the effect says so."""
    flipped = flip("paged_kv", "off", "on", prefix_caching="off")

    found = effect([*BASE, *arm("paged_kv=off", 0.5, flipped=flipped)], "paged_kv=off")

    assert found["implied"] == {"prefix_caching": "off"}


def test_a_pair_of_flips_is_one_effect() -> None:
    """Two toggles flipped together are joined, and compared value over base."""
    both = OFF | flip("kv_cache_dtype", "fp8", "auto")

    found = effect([*BASE, *arm("both", 0.8, flipped=both)], "both")

    assert (found["toggle"], found["value"]) == ("prefix_caching+kv_cache_dtype", "off+fp8")
    assert found["ratio_of"] == "off+fp8/on+auto"
    assert found["ratio"] == pytest.approx(0.8, rel=0.01)


def test_means_are_geometric_over_the_paired_blocks() -> None:
    """Blocks of 1000, 2000 and 4000: the baseline is 2000, the treated arm half of it."""
    base = arm("baseline", noise=STEADY, blocks=[0, 1, 3])
    found = effect([*base, *arm("pc=off", 0.5, noise=STEADY, flipped=OFF)], "pc=off")

    assert found["n_blocks"] == 3
    assert found["baseline"] == pytest.approx(2000)
    assert found["treated"] == pytest.approx(1000)


@pytest.mark.parametrize("status", ["void", "invalid", "failed", "interrupted", "skipped"])
def test_runs_that_are_not_ok_are_out_with_their_pair(status: str) -> None:
    """A void run takes its block out of the comparison, on whichever side it stands."""
    spoilt = arm("pc=off", 9.0, blocks=[1], flipped=OFF, status=status)
    good = arm("pc=off", 0.5, noise=STEADY, blocks=[0, 2, 3, 4], flipped=OFF)
    no_base = arm("baseline", 9.0, blocks=[4], status=status)

    found = effect([*BASE[:4], *no_base, *spoilt, *good], "pc=off")

    assert found["n_blocks"] == 3
    assert found["ratio"] == pytest.approx(2)


def test_runs_with_other_seeds_are_not_compared() -> None:
    """Another seed is another set of requests: nothing is paired."""
    other = arm("pc=off", 0.5, flipped=OFF, seed=7)

    assert compared([*BASE, *other])[0] == []


def test_loads_workloads_and_engines_are_not_mixed() -> None:
    """An arm has no effect against the baseline of another load, workload or label."""
    for change in (
        {"load": LoadFacts.model_validate({**CLOSED, "value": 9})},
        {"workload": "code"},
        {"label": "other"},
    ):
        assert compared([*BASE, *arm("pc=off", 0.5, flipped=OFF, **change)])[0] == []


def test_one_block_has_no_interval_two_have() -> None:
    """Ends of an interval need a spread."""
    one = effect([*BASE, *arm("a", 0.5, blocks=[0], flipped=OFF)], "a")
    two = effect([*BASE, *arm("a", 0.5, blocks=[0, 1], flipped=OFF)], "a")

    assert (one["low"], one["high"]) == (None, None)
    assert two["low"] < two["ratio"] < two["high"]


@pytest.mark.parametrize("flipped", [OFF, flip("kv_cache_dtype", "fp8", "auto")])
@pytest.mark.parametrize("spoilt", [0.0, None])
def test_a_value_of_zero_or_none_gives_no_ratio(
    spoilt: float | None, flipped: dict[str, Any]
) -> None:
    """A block without goodput is not left out to make a ratio of the rest, above or below."""
    treated = arm("t", 0.5, flipped=flipped)
    treated[2] = changed(treated[2], {**treated[2].metrics, TOKENS: spoilt})

    found = effect([*BASE, *treated], "t")

    assert [found[name] for name in ("ratio", "low", "high", "verdict")] == [None] * 4
    assert found["n_blocks"] == 5
    assert found["treated"] == spoilt


def test_verdicts_follow_the_direction_of_the_metric() -> None:
    """Twice the throughput and half the TTFT are both BETTER with the toggle on."""
    runs = [*BASE, *AGAIN, *arm("pc=off", 0.5, flipped=OFF)]

    assert effect(runs, "pc=off", TOKENS)["verdict"] == "BETTER"
    assert effect(runs, "pc=off", TTFT)["ratio"] == pytest.approx(0.5, rel=0.01)
    assert effect(runs, "pc=off", TTFT)["verdict"] == "BETTER"
    assert effect(runs, "pc=off", TPOT)["verdict"] == "NO DIFFERENCE"
    worse = [*BASE, *AGAIN, *arm("kv=fp8", 0.5, flipped=flip("kv_cache_dtype", "fp8", "auto"))]
    assert effect(worse, "kv=fp8", TOKENS)["verdict"] == "WORSE"


def test_four_blocks_give_no_verdict() -> None:
    """However large the change, five blocks are needed to speak."""
    four = [*BASE, *AGAIN, *arm("pc=off", 0.1, blocks=range(4), flipped=OFF)]

    assert effect(four, "pc=off")["low"] is not None
    assert effect(four, "pc=off")["verdict"] is None


def test_only_primary_metrics_get_a_verdict() -> None:
    """The other headline metrics are shown with their interval and without one."""
    found, _ = compared([*BASE, *AGAIN, *arm("pc=off", 0.5, flipped=OFF)])

    judged = {e["metric"] for e in found if e["verdict"] is not None}
    assert judged == {TOKENS, TTFT, TPOT}
    assert {e["metric"] for e in found} == set(headline_metrics(LoadFacts.model_validate(CLOSED)))


def test_in_open_loop_the_verdict_is_on_the_scheduled_ttft() -> None:
    """Counted from the send alone, a server too slow for its load would look fast."""
    runs = [*BASE, *AGAIN, *arm("pc=off", 0.5, flipped=OFF)]
    opened = [
        changed(run, {**run.metrics, "scheduled_ttft_ms.p50": run.metrics[TTFT]}, load=OPEN_LOAD)
        for run in runs
    ]

    assert effect(opened, "pc=off", "scheduled_ttft_ms.p50")["verdict"] == "BETTER"
    assert effect(opened, "pc=off", TTFT)["verdict"] is None
    assert effect(opened, "pc=off", TTFT)["ratio"] == pytest.approx(0.5, rel=0.01)


def test_many_toggles_are_held_to_more() -> None:
    """A change that one toggle alone could claim is inconclusive among twenty."""
    shaky = arm("t", 1.08, noise=NOISY)

    alone, among = (
        effect([*BASE, *AGAIN, *shaky], "t"),
        effect([*BASE, *AGAIN, *shaky, *wild_toggles(19)], "t"),
    )

    assert (alone["low"], alone["high"]) == (among["low"], among["high"])
    assert alone["low"] > 1
    assert (alone["verdict"], among["verdict"]) == ("BETTER", "INCONCLUSIVE")
    assert alone["p_adjusted"] < 0.05 < among["p_adjusted"]


def test_an_alarm_of_the_control_silences_its_group_and_no_other() -> None:
    """If the baseline differs from itself, nothing is concluded there; elsewhere it is."""
    drifted = arm("baseline-again", 1.2)
    here = [*BASE, *drifted, *arm("pc=off", 0.5, flipped=OFF)]
    there = [
        changed(run, workload="code") for run in [*BASE, *AGAIN, *arm("pc=off", 0.5, flipped=OFF)]
    ]

    found, notes = compared([*here, *there])

    verdicts = {(e["workload"], e["arm"], e["metric"]): e["verdict"] for e in found}
    assert verdicts["chat", "pc=off", TOKENS] is None
    assert verdicts["chat", "baseline-again", TOKENS] == "BETTER"
    assert verdicts["code", "pc=off", TOKENS] == "BETTER"
    assert len(notes) == 1
    assert notes[0].startswith("embedded, chat, concurrency 2: no verdicts")
    assert f"{TOKENS} × 1.2" in notes[0]


def test_the_control_has_its_own_row() -> None:
    """The A/A is an effect like any other, named baseline-again; equal arms are exactly 1."""
    found = effect([*BASE, *AGAIN], "baseline-again")

    assert (found["toggle"], found["ratio_of"]) == ("baseline-again", "again/baseline")
    assert (found["ratio"], found["low"], found["high"]) == (1.0, 1.0, 1.0)
    assert found["verdict"] == "NO DIFFERENCE"


def test_the_control_is_not_drowned_among_many_toggles() -> None:
    """Twenty toggles do not make the alarm deaf: the control is a family of its own."""
    shaky = arm("baseline-again", 1.15, noise=NOISY)
    wild = wild_toggles(20)

    _, notes = compared([*BASE, *shaky, *wild])

    among_toggles = effect([*BASE, *AGAIN, *arm("t", 1.15, noise=NOISY), *wild], "t")
    assert len(notes) == 1
    assert among_toggles["verdict"] == "INCONCLUSIVE"


def test_verdicts_without_a_control_are_remarked_on() -> None:
    """Who runs without the A/A control gets verdicts and is told what they lack."""
    found, notes = compared([*BASE, *arm("pc=off", 0.5, flipped=OFF)])

    assert any(e["verdict"] == "BETTER" for e in found)
    assert notes == [
        "embedded, chat, concurrency 2: no baseline-again to hold the verdicts against"
    ]


@pytest.mark.parametrize(
    ("low", "high", "p_value", "expected"),
    [
        (0.98, 1.02, 1.0, "NO DIFFERENCE"),
        (1.01, 1.02, 0.001, "NO DIFFERENCE"),  # real, and too small to matter
        (1 / 1.0299, 1.0299, 0.9, "NO DIFFERENCE"),
        (1.01, 1.04, 0.01, "BETTER"),
        (0.5, 0.9, 0.01, "WORSE"),
        (0.9, 1.2, 0.6, "INCONCLUSIVE"),
        (1.01, 1.2, 0.2, "INCONCLUSIVE"),  # adjusted for the other tests
        (None, None, 1.0, None),
    ],
)
def test_the_rule_of_the_verdict(
    low: float | None, high: float | None, p_value: float, expected: str | None
) -> None:
    """Inside the margin, else excludes 1, else inconclusive: in this order."""
    middle = math.sqrt(low * high) if low and high else 1.0

    found = verdict(
        Ratio(ratio=middle, low=low, high=high, p_value=p_value), p_value, better="higher"
    )

    assert found == expected


def test_blocks_that_repeat_each_other_on_virtual_time_are_one() -> None:
    """Fixed lengths: every block gives one figure, so there is no interval and no verdict."""
    same = [
        changed(run, {TOKENS: 1000 * factor, TTFT: 200.0, TPOT: 20.0}, clock="virtual")
        for name, factor, flips in (("baseline", 1.0, None), ("pc=off", 0.5, OFF))
        for run in arm(name, flipped=flips)
    ]

    found, notes = compared(same)

    assert {(e["n_blocks"], e["low"], e["p_adjusted"], e["verdict"]) for e in found} >= {
        (1, None, None, None)
    }
    assert all(e["verdict"] is None and e["low"] is None for e in found)
    assert effect(same, "pc=off")["ratio"] == pytest.approx(2)
    (note,) = notes
    assert note == (
        "embedded, chat, concurrency 2: blocks are identical, since nothing was drawn: n = 1, so "
        "no interval and no verdict"
    )


def test_drawn_blocks_and_real_clocks_keep_their_verdict() -> None:
    """A ratio of 1 in five drawn blocks is no difference; a real clock repeats by chance."""
    drawn = [changed(run, clock="virtual") for run in [*BASE, *AGAIN]]
    real = [
        changed(run, {TOKENS: 1000.0}, clock="monotonic")
        for name in ("baseline", "baseline-again")
        for run in arm(name)
    ]

    assert effect(drawn, "baseline-again")["verdict"] == "NO DIFFERENCE"
    assert effect(drawn, "baseline-again")["n_blocks"] == 5
    assert effect(real, "baseline-again")["verdict"] == "NO DIFFERENCE"


def test_one_metric_that_never_moves_is_named_alone() -> None:
    """TPOT repeats in blocks whose arrivals are drawn: only it loses interval and verdict."""
    runs = [
        changed(run, {**run.metrics, TPOT: 20.0}, clock="virtual")
        for run in [*BASE, *arm("pc=off", 0.5, flipped=OFF)]
    ]

    found, notes = compared(runs)

    verdicts = {e["metric"]: e["verdict"] for e in found}
    assert (verdicts[TOKENS], verdicts[TPOT]) == ("BETTER", None)
    assert any("in tpot_ms.p50 of some arms, blocks are identical" in note for note in notes)


BOTH = OFF | flip("kv_cache_dtype", "fp8", "auto")


def leave_one_out() -> list[AnalysedRun]:
    """Return baseline 1000, all flips 600, all but prefix_caching=off 900, all but fp8 500."""
    return [
        *BASE,
        *arm("all", 0.6, noise=STEADY, flipped=BOTH),
        *arm("no-pc", 0.9, noise=STEADY, flipped=flip("kv_cache_dtype", "fp8", "auto")),
        *arm("no-fp8", 0.5, noise=STEADY, flipped=OFF),
    ]


def test_leaving_one_out_is_compared_with_leaving_none_out() -> None:
    """What the one flip adds to all the others: 900/600 for the switch, 600/500 for the value."""
    found, _ = compared(leave_one_out(), "leave-one-out")
    by_arm = {e["arm"]: e for e in found if e["metric"] == TOKENS}

    shown = {
        name: (e["toggle"], e["ratio_of"], e["others_flipped"], round(float(e["ratio"]), 9))
        for name, e in by_arm.items()
    }
    assert shown == {
        "all": ("prefix_caching+kv_cache_dtype", "off+fp8/on+auto", False, 0.6),
        "no-pc": ("prefix_caching", "on/off", True, 1.5),
        "no-fp8": ("kv_cache_dtype", "fp8/auto", True, 1.2),
    }


def test_other_designs_compare_every_arm_with_the_baseline() -> None:
    """The same arms as pairs: each ratio is that to the baseline."""
    found, _ = compared(leave_one_out(), "pairs")
    ratios = {e["arm"]: e["ratio"] for e in found if e["metric"] == TOKENS}
    assert ratios == {
        "all": pytest.approx(0.6), "no-pc": pytest.approx(0.9), "no-fp8": pytest.approx(2.0)
    }  # fmt: skip
    assert not any(e["others_flipped"] for e in found)


def window(kind: Literal["steady", "whole-run"]) -> WindowFacts:
    return WindowFacts(
        kind=kind,
        start_s=0.0,
        end_s=1.0,
        reason=None,
        length_s=1.0,
        requests_ended=1,
        output_tokens=None,
        prompt_tokens=None,
    )


def test_a_whole_run_against_a_steady_window_is_not_judged() -> None:
    """Ramp and drain in one of the two figures are no effect of the toggle: a ratio, no verdict."""
    runs = [
        changed(run, window=window("steady"))
        for run in [*BASE, *AGAIN, *arm("pc=off", 0.5, flipped=OFF)]
    ]
    fine, fine_notes = compared(runs)
    runs[-1] = changed(runs[-1], window=window("whole-run"))

    mixed, notes = compared(runs)

    verdicts = [{e["verdict"] for e in found if e["arm"] == "pc=off"} for found in (fine, mixed)]
    assert "BETTER" in verdicts[0]
    assert verdicts[1] == {None}
    assert fine_notes == []
    (note,) = notes
    assert note.startswith("embedded, chat, concurrency 2: no verdicts for pc=off: some of their")
