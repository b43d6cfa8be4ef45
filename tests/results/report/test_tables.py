from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from summaries import ARMS, Fixture, as_open_loop, make_summary, only

from harness.results.report.terminal import print_summary
from harness.results.summary import parsed_summary


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have set it."""
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(summary: dict[str, Any], *, verbose: bool = False, **console: Any) -> str:
    file = io.StringIO()
    screen = Console(file=file, color_system=None, **console)
    print_summary(parsed_summary(summary), screen, verbose=verbose)
    return file.getvalue()


def flat(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def tables(text: str) -> list[str]:
    """The lines of each panel: from its title to the blank line after its remarks."""
    return [part for part in text.split("\n\n") if "\narm " in part]


def row(table: str, arm: str) -> str:
    (line,) = [line for line in table.splitlines() if line.startswith(f"{arm} ")]
    return line


WIDE = [
    Fixture(),
    Fixture(blocks=5),
    Fixture(blocks=5, labels=("vllm", "sglang-with-a-long-name"), skipped="quantization=int8"),
]


@pytest.mark.parametrize("fixture", WIDE)
@pytest.mark.parametrize(
    "console", [{}, {"width": 100, "force_terminal": True}, {"width": 180, "force_terminal": True}]
)
def test_no_line_is_wider_than_100_columns_and_none_is_cut(
    fixture: Fixture, console: dict[str, Any]
) -> None:
    """Piped, on a terminal of 100 columns and on a wider one, all text stands within 100."""
    text = printed(make_summary(fixture), **console)

    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert "…" not in text


def test_a_narrow_terminal_gets_two_tables_that_fit() -> None:
    """On 80 columns, figures and ratios stand below each other instead of being cut."""
    text = printed(make_summary(Fixture(blocks=5)), width=80, force_terminal=True)

    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert text.count("\narm ") == 8


def test_huge_figures_and_long_names_wrap_instead_of_being_cut() -> None:
    """Names of any length and figures of any size keep within the line and keep every letter."""
    summary = only(make_summary(), ["baseline", "speculative=eagle"])
    value = "eagle3(draft=some-organisation/some-very-long-draft-model-name,tokens=5)"
    for arm in summary["arms"]:
        arm["metrics"] = dict.fromkeys(arm["metrics"], 9876543.2)
        if arm["flipped"]:
            arm["flipped"] = {"speculative": {"value": value, "base": "off", "implied": {}}}
    for effect in summary["effects"]:
        effect["ratio_of"] = f"{value}/off"
        effect["ratio"] = 98765.4

    text = printed(summary)

    assert max(cell_len(line) for line in text.splitlines()) <= 100
    lines = tables(text)[0].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("speculative"))
    edge = lines[start].index("9,876,543")
    end = next(i for i, line in enumerate(lines) if i > start and line.endswith(" ×"))
    name = "".join("".join(line[:edge].split()) for line in lines[start : end - 2])
    assert name == f"speculative{value}"


def test_every_arm_has_a_row_with_a_readable_name() -> None:
    """Each panel's table names each arm as `toggle value`, once; the control with --verbose.

    On virtual time the control equals the baseline, so by default it has no row.
    """
    assert "\nbaseline-again " not in printed(make_summary())
    found = tables(printed(make_summary(), verbose=True))

    assert len(found) == 4
    for table in found:
        for arm in ("baseline", "baseline-again", *(name.replace("=", " ") for name in ARMS)):
            assert len([line for line in table.splitlines() if line.startswith(f"{arm} ")]) == 1


def test_what_a_value_drags_along_stands_in_the_name_of_its_arm() -> None:
    """`paged_kv off` is followed by the prefix caching that it turns off."""
    wide, narrow = printed(make_summary()), printed(make_summary(), width=80, force_terminal=True)
    lines = tables(narrow)[0].splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("paged_kv off"))

    assert row(tables(wide)[0], "paged_kv off ⇒ prefix_caching off")
    assert lines[place + 1].strip() == "⇒ prefix_caching off"


def test_a_row_holds_the_figures_and_ratios_of_its_arm() -> None:
    """The cells are the summary's values in the column's unit, then the ratios with their pair."""
    summary = only(make_summary(), ["baseline", "kv_cache_dtype=fp8"])

    first, second = tables(printed(summary))[:2]

    cells = ["kv_cache_dtype", "fp8", "49.4", "51.0", "70.3", "~159", "19.6", "~25.9"]
    cells += ["~10.0", "0.176", "~1.01", "~0.99", "~0.99"]
    assert row(first, "kv_cache_dtype fp8").split() == cells
    assert "2,587" in row(second, "kv_cache_dtype fp8")


def test_ratios_of_switches_are_on_over_off() -> None:
    """A two-valued toggle's ratio is on ÷ off, also where `off` is what was flipped to."""
    text = printed(make_summary())

    assert row(tables(text)[1], "prefix_caching off").split()[-3:] == ["1.82", "0.085", "0.72"]
    assert "× on÷off for switches, else arm÷baseline" in text.split("\narm ")[0]


def test_simulated_stands_in_every_title_and_at_the_end() -> None:
    """Each table of a simulation says so, and the last line says what that means."""
    text = printed(make_summary())

    assert text.splitlines()[-1].startswith("SIMULATED: ")
    titles = [table.splitlines()[0] for table in tables(text)]
    assert len(titles) == 4
    assert all(title.endswith("SIMULATED") for title in titles)


def test_a_real_engine_is_not_called_simulated() -> None:
    """Nothing of the mark is left for an engine that ran on a GPU."""
    assert "simulated" not in printed(make_summary(Fixture(simulated=False))).lower()


def test_a_mix_says_which_engine_is_simulated() -> None:
    """Where one engine of two is simulated, the remark names it and claims nothing of the other."""
    summary = make_summary(Fixture(labels=("embedded", "vllm")))
    for run in summary["runs"]:
        run["engine_kind"] = "simulated" if run["label"] == "embedded" else "real"

    last = printed(summary).splitlines()[-1]

    assert "embedded" in last
    assert "no GPU ran" not in last


def test_an_unreliable_p99_is_marked_and_explained() -> None:
    """With 20 requests a P99 carries ~ and a legend says what is missing; with 300 it does not."""
    text = printed(make_summary(), verbose=True)
    few, many = tables(text)[:2]

    assert "~160" in row(few, "baseline")
    assert "~P99: under 299 requests" in text
    assert "unreliable: each run needs 279 more" in few
    assert "~" not in row(many, "baseline")
    assert "unreliable" not in many


def test_a_ratio_that_may_be_none_is_marked_where_no_verdict_says_so() -> None:
    """An interval over the blocks that holds 1 is seen in the table, not only on the page."""
    summary = only(make_summary(), ["baseline", "kv_cache_dtype=fp8"])
    for effect in summary["effects"]:
        effect |= {"ratio": 4.03, "low": 0.9, "high": 18.0, "verdict": None}
    text = printed(summary)

    assert row(tables(text)[0], "kv_cache_dtype fp8").split()[-3:] == ["~4.03"] * 3
    assert "~×: interval includes 1" in flat(text)
    for effect in summary["effects"]:
        effect |= {"low": 2.0}
    assert "~4.03" not in printed(summary)


def test_an_absent_figure_is_a_dash() -> None:
    """A void arm's cells are dashes: no 0, nan or None stands for what was not measured."""
    table = tables(printed(make_summary()))[3]

    cells = row(table, "chunked_prefill off VOID").split()[3:]
    assert set(cells) == {"–"}
    assert "None" not in table
    assert "nan" not in table


def test_arms_that_are_out_are_named_with_their_reason() -> None:
    """Under the table stand the void and the skipped arm, each with why."""
    text = printed(make_summary(Fixture(skipped="tensor_parallel=8")))

    flat = " ".join(text.split())
    assert "VOID chunked_prefill off: chunked_prefill: asked for off, 212 prompts" in flat
    assert "SKIPPED tensor_parallel 8: needs hardware with 8-bit floating point" in flat


def test_a_failed_block_of_a_good_arm_is_told() -> None:
    """An arm that lost one block keeps its row, and the block's reason is printed."""
    summary = make_summary()
    run = next(run for run in summary["runs"] if run["arm"] == "cuda_graphs=off")
    run.update(status="failed", reason="2.0% of the requests failed")

    assert "failed, left out: 2.0% of the requests failed (cuda_graphs off, block 0)" in flat(
        printed(summary)
    )


def test_many_lost_blocks_of_one_reason_are_one_line() -> None:
    """A sweep that was cut short does not fill the screen with the runs it did not reach."""
    summary = make_summary()
    for run in summary["runs"]:
        if run["block"] == 2 and run["workload"] == "support-bot":
            run.update(status="interrupted", reason="not run", metrics=None, counts=None)

    text = printed(summary)

    assert text.count("interrupted, left out: not run (15 runs)") == 2


def test_messages_that_differ_in_their_numbers_are_cut_to_a_few() -> None:
    """Of 90 messages of one check the terminal shows one, with --verbose two, for all runs."""
    summary = make_summary()
    for i, run in enumerate(run for run in summary["runs"] if run["warnings"]):
        run["warnings"][0]["message"] = f"sent {i} ms late"

    for verbose, runs in ((False, [90]), (True, [1, 89])):
        text = printed(summary, verbose=verbose).splitlines()
        lines = [line for line in text if line.startswith("warning: few-requests")]
        assert [int(re.findall(r"\((\d+) run", line)[0]) for line in lines] == runs
        assert "numbers differ" in lines[-1]


def test_remarks_tell_window_counts_failures_and_assumptions() -> None:
    """With --verbose, windows, counts and assumptions stand below each table; failures always."""
    text = printed(make_summary(), verbose=True)
    first, second, third = tables(text)[:3]

    assert "window: whole run (2 requests were sent after the ramp" in third
    assert "window: steady" in second
    assert "n = 300 measured, 400 sent, 1 failed" in second
    assert "assumed: eagle: each of 5 draft tokens is accepted with probability 0.85" in first
    short = printed(make_summary())
    assert "concurrency 100, 400 requests: failed requests: timeout 45" in short
    assert "window: " not in short
    assert "assumed: " not in short


def test_what_is_assumed_of_all_arms_is_told_once() -> None:
    """What a draft assumes stands under each table with its arm, what all assume at the end."""
    text = printed(make_summary(), verbose=True)

    assert text.count("assumed: eagle: each of 5 draft tokens") == 4
    assert text.count("assumed: step efficiency of the roofline") == 1
    without = printed(only(make_summary(), ["baseline", "batching=static"]), verbose=True)
    assert without.count("assumed: eagle: each of 5 draft tokens") == 1


def test_no_verdict_is_shown_below_five_blocks() -> None:
    """Three blocks give bare ratios and say so; five give marks with a legend."""
    three, five = printed(make_summary()), printed(make_summary(Fixture(blocks=5)))

    assert "▲" not in three
    assert "not proven: 3 blocks, a verdict needs 5; set `blocks: 5`" in three
    assert "not proven" not in five
    assert row(tables(five)[0], "quantization int4").split()[-3:] == ["2.64▲", "1.02?", "0.34▲"]
    assert "▲ better; ▼ worse" in flat(five)


def test_several_engines_stand_in_groups_under_their_labels() -> None:
    """With two engines each has its heading and its own baseline; with one there is no heading."""
    two = tables(printed(make_summary(Fixture(labels=("vllm", "sglang-next")))))[0].splitlines()

    heads = [i for i, line in enumerate(two) if line.strip() in ("vllm", "sglang-next")]
    assert len(heads) == 2
    assert all(two[i + 1].startswith("baseline ") for i in heads)
    assert "\nembedded" not in tables(printed(make_summary()))[0]


def test_open_loop_shows_ttft_from_when_a_request_was_due() -> None:
    """The TTFT column is the scheduled one, and a remark says so."""
    summary = as_open_loop(only(make_summary(), ["baseline", "prefix_caching=off"]))

    text = printed(summary)

    assert row(tables(text)[0], "baseline").split()[3] == "71.0"
    assert "TTFT counts from when a request was due" in flat(text)


def test_a_lone_baseline_gets_no_columns_of_ratios() -> None:
    """Nothing to compare means no ratio column, and a line that says why."""
    text = printed(only(make_summary(), ["baseline"]), verbose=True)

    assert "on÷off" not in text
    assert "best arm" not in text
    assert "nothing to compare" in text


def test_markup_in_names_is_printed_as_it_is() -> None:
    """Square brackets of a user's workload name are text, not styling."""
    summary = make_summary()
    for part in ("runs", "arms", "effects"):
        for entry in summary[part]:
            entry["workload"] = f"[red]{entry['workload']}[/red]"

    assert "[red]chat[/red] · concurrency 1" in printed(summary)


def test_doubts_are_counted_and_come_with_their_remedy() -> None:
    """A check that many runs share is one line."""
    text = printed(make_summary())

    assert (
        "warning: few-requests: P99 rests on 20 requests (90 runs); raise requests to 300" in text
    )
    assert "client" not in text


CLIENTS = Fixture(
    simulated=False, void=None, invalid="chunked_prefill=off", degraded="cuda_graphs=off"
)


def test_rows_of_doubtful_clients_are_marked() -> None:
    """DEGRADED rows keep their figures, INVALID ones have none; a trusted row carries no word."""
    table = tables(printed(make_summary(CLIENTS)))[3]
    lines = table.splitlines()

    for arm, mark in (("cuda_graphs off", "DEGRADED"), ("chunked_prefill off", "INVALID")):
        assert [line for line in lines if line.startswith(f"{arm} {mark} ")]
    assert table.count("DEGRADED") == table.count("INVALID") == 1
    assert "–" in row(table, "chunked_prefill off")
    assert "–" not in row(table, "cuda_graphs off")


def test_each_reason_against_a_client_is_one_footnote() -> None:
    """Verdict, who has it, what was seen and what to do: once under the table that it concerns."""
    text = " ".join(printed(make_summary(CLIENTS)).split())

    assert text.count("client DEGRADED (") == text.count("client INVALID, left out (") == 1
    assert (
        "client INVALID, left out (chunked_prefill off, 3 blocks): the client's event loop woke "
        "95 ms late (p99); the limit is 20 ms; use more client processes (`--workers 2`) or"
    ) in text
    assert "INVALID chunked_prefill off: " not in text
    assert "client certificates: 174 TRUSTED; 3 DEGRADED; 3 INVALID" in text


def test_a_reason_that_runs_share_with_other_numbers_is_still_one_line() -> None:
    """Each run has its own milliseconds: the first is told, the others are called alike."""
    summary = make_summary(CLIENTS)
    for i, run in enumerate(summary["runs"]):
        if run["certificate"]["verdict"] == "DEGRADED":
            (reason,) = run["certificate"]["reasons"]
            reason["message"] = f"woke {i} ms late"

    text = printed(summary)

    assert text.count("client DEGRADED (") == 1
    assert " ms late (the worst of them); use more" in " ".join(text.split())


def test_a_pipe_keeps_to_the_columns_that_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS=80 sets the width where there is no terminal; without it 100 are used."""
    wide = printed(make_summary(Fixture(blocks=5)))
    monkeypatch.setenv("COLUMNS", "80")
    narrow = printed(make_summary(Fixture(blocks=5)))

    assert max(cell_len(line) for line in narrow.splitlines()) <= 80
    assert max(cell_len(line) for line in wide.splitlines()) > 80


def combined(*flips: tuple[str, str, str]) -> dict[str, Any]:
    """Return a summary whose second arm flips several toggles: (toggle, value, base)."""
    summary = only(make_summary(), ["baseline", "paged_kv=off"])
    implied = {"prefix_caching": "off"}
    for arm in summary["arms"]:
        if arm["arm"] != "baseline":
            arm["flipped"] = {
                toggle: {
                    "value": value, "base": base, "implied": implied if toggle == "paged_kv" else {}
                }
                for toggle, value, base in flips
            }  # fmt: skip
    above, below = ("+".join(flip[i] for flip in flips) for i in (1, 2))
    for effect in summary["effects"]:
        effect.update(toggle="+".join(flip[0] for flip in flips), ratio_of=f"{above}/{below}")
    return summary


def test_a_pair_breaks_at_its_signs_and_not_inside_a_word() -> None:
    """Of off+off+…/on+on+… each line ends in a sign, or in the last value."""
    summary = combined(*((f"toggle_{i}", "off", "on") for i in range(5)))
    for effect in summary["effects"]:
        effect["others_flipped"] = True

    text = printed(summary)

    for part in ("off+off+", "off/", "on+on+on+", "on+on"):
        assert [
            line for line in text.splitlines() if re.search(rf"\s{re.escape(part)}(\s|$)", line)
        ]


def test_what_is_flipped_and_dragged_along_is_named_once() -> None:
    """paged_kv off drags prefix_caching off along; flipped as well, it has a line of its own."""
    table = tables(printed(combined(("paged_kv", "off", "on"), ("prefix_caching", "off", "on"))))[0]

    names = [line for line in table.splitlines() if "prefix_caching off" in line[:50]]
    assert len(names) == 1
    assert "+ prefix_caching off" in names[0]
    assert "⇒" not in names[0]


def test_what_a_ratio_is_of_is_said_whether_or_not_there_are_verdicts() -> None:
    """on/off beside int8/none turns the direction round: one line says which stands above."""
    for blocks in (3, 5):
        text = flat(printed(make_summary(Fixture(blocks=blocks)), verbose=True))
        assert text.count("ratio of A/B: ") == 1
        assert ("▲ better" in text) is (blocks == 5)
    assert "ratio of A/B" not in printed(only(make_summary(), ["baseline"]), verbose=True)


def test_an_arm_that_leaves_one_out_names_the_toggle_of_its_ratio() -> None:
    """Its name lists what is flipped; what is compared is what is not."""
    summary = combined(("batching", "static", "continuous"), ("cuda_graphs", "off", "on"))
    for effect in summary["effects"]:
        effect.update(toggle="prefix_caching", ratio_of="on/off", others_flipped=True)

    text = printed(summary, verbose=True)

    assert row(tables(text)[0], "batching static").split()[-4] == "prefix_caching"
    assert "leave-one-out: the ratio of an arm that leaves one flip out" in text


def test_identical_blocks_are_not_told_to_be_repeated() -> None:
    """Where nothing is drawn, more blocks bring no verdict, and none are asked for."""
    summary = make_summary(Fixture(blocks=5))
    for effect in summary["effects"]:
        effect.update(n_blocks=1, verdict=None, low=None, high=None)

    text = flat(printed(summary))

    assert "no verdict: all blocks are identical" in text
    assert "set `blocks" not in text


def test_a_rate_is_one_of_conversations() -> None:
    """Eight a second over chats of four turns are 32 requests: the title says of what."""
    text = printed(as_open_loop(only(make_summary(), ["baseline"])))

    assert "chat · 1 conversations/s poisson, 20 requests, 300 s" in text


def test_the_heading_has_the_gpus_that_the_baseline_uses() -> None:
    """tensor_parallel: [8, 4] makes a baseline of 8 GPUs, whatever hardware.count says."""
    summary = make_summary()
    for arm in summary["arms"]:
        arm["gpus"] = 8 if arm["arm"] == "baseline" else 4

    assert "on 8 × a100-80gb" in printed(summary).splitlines()[0]


def test_a_stand_in_is_marked_on_every_table_and_at_the_end() -> None:
    """A program that only speaks like an engine has no times of that engine."""
    summary = make_summary(Fixture(simulated=False)) | {"stand_in": True}
    for run in summary["runs"]:
        run["engine_kind"] = "stand-in"
    text = printed(summary)

    assert all("· STAND-IN" in part for part in tables(text))
    assert text.splitlines()[-1].startswith("STAND-IN: ")
    assert "SIMULATED" not in text


def test_the_best_arm_of_each_panel_comes_first() -> None:
    """The answer is above all tables: arm, value, ratio to the baseline and its interval."""
    text = printed(make_summary(Fixture(blocks=5)))
    answer = text.split("\n\n")[0].splitlines()

    best = [line for line in answer if line.startswith("support-bot · concurrency 1 ")]
    assert len(best) == 1
    assert "quantization int4" in best[0]
    assert best[0].split()[-4:-1] == ["2.54", "to", "2.75"]
    assert best[0].endswith("better")


def test_a_switch_that_is_better_off_has_its_ratio_turned_round() -> None:
    """The best arm's ratio is arm ÷ baseline, also where the tables have on ÷ off."""
    summary = only(make_summary(Fixture(blocks=5)), ["baseline", "prefix_caching=off"])
    for arm in summary["arms"]:
        if arm["arm"] != "baseline":
            arm["metrics"]["output_tokens_per_s"] = 1e6
    for effect in summary["effects"]:
        effect |= {"ratio": 0.5, "low": 0.4, "high": 0.8, "verdict": "WORSE"}

    line = printed(summary).splitlines()[3]

    assert "prefix_caching off" in line
    assert "× 2.00" in line
    assert "1.25 to 2.50" in line
    assert line.rstrip().endswith("better")


def test_a_baseline_that_nothing_beats_is_the_best_arm() -> None:
    """No arm is better: no ratio, and nothing is left to prove."""
    summary = only(make_summary(), ["baseline", "prefix_caching=off"])
    for arm in summary["arms"]:
        arm["metrics"]["output_tokens_per_s"] = 9.0 if arm["arm"] == "baseline" else 1.0

    text = printed(summary)

    assert re.search(r"support-bot · concurrency 1 +baseline +9.00 +– +–", text)
    assert "not proven" not in text


@pytest.mark.parametrize("labels", [("embedded",), ("vllm", "sglang-with-a-long-name")])
def test_long_names_cut_nothing_of_the_answer(labels: tuple[str, ...]) -> None:
    """Names of arms and engines are broken into lines; heads and numbers stay whole."""
    value = "eagle3(draft=some-organisation/some-very-long-draft-model-name,tokens=5)"
    summary = make_summary(Fixture(blocks=5, labels=labels))
    for arm in summary["arms"]:
        for change in arm["flipped"].values():
            change |= {"value": value, "implied": {"overlap_scheduling": "off"}}

    answer = printed(summary).split("\n\n")[0]

    (head,) = [line for line in answer.splitlines() if line.startswith("workload · load ")]
    assert head.rstrip().endswith("verdict")
    assert "÷ baseline" in head
    assert "95 % interval" in head
    assert "overlap_scheduling" not in answer
    assert max(cell_len(line) for line in answer.splitlines()) <= 100
