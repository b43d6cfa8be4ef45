from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sweep_files import only_problem, sweep, write

from harness.adapters.base import BASELINE, ToggleValue
from harness.sweep_file import load_sweep
from harness.workloads.lengths import Empirical, Fixed, Lognormal, Uniform
from harness.workloads.multi_turn import MultiTurn
from harness.workloads.shared_prefix import SharedPrefix
from harness.workloads.trace.replay import TraceReplay

MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n'


def test_the_smallest_file_says_the_rest_by_default(tmp_path: Path) -> None:
    """What a file leaves out is a value that a reader can look up, never a hole."""
    spec = sweep(tmp_path)

    assert (spec.name, spec.design, spec.cache, spec.blocks, spec.seed) == (
        "sweep", "one-at-a-time", "cold", 3, 0,
    )  # fmt: skip
    assert (spec.max_model_len, spec.max_batched_tokens, spec.max_failed_share) == (8192, 512, 0.01)
    assert spec.baseline == {**BASELINE, "tensor_parallel": ToggleValue("2")}
    assert spec.slo.facts() == {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None}
    assert spec.price_per_gpu_hour is None
    assert [engine.label for engine in spec.engines] == ["embedded"]


def test_a_sweep_is_frozen(tmp_path: Path) -> None:
    """Nothing changes a sweep after it was checked."""
    spec = sweep(tmp_path)

    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 1  # type: ignore[misc]


def test_quantities_are_read_with_their_units(tmp_path: Path) -> None:
    """Durations become nanoseconds and percents shares; the manifest's names carry the unit."""
    spec = sweep(
        tmp_path,
        slo="{ttft: 1 s, tpot: 50 ms}",
        max_failed_share="2 %",
        base="{memory_utilization: 85 %, max_num_seqs: 8, dtype: float16}",
        price_per_gpu_hour="2.5",
    )

    assert spec.slo.ttft_ns == 1_000_000_000
    assert spec.slo.facts() == {"ttft_ms": 1000.0, "tpot_ms": 50.0, "e2e_ms": None}
    assert (spec.max_failed_share, spec.memory_utilization) == (0.02, 0.85)
    assert (spec.max_num_seqs, spec.dtype, spec.price_per_gpu_hour) == (8, "float16", 2.5)


def test_lengths_have_four_forms(tmp_path: Path) -> None:
    """A number, bounds, two figures of a lognormal, or lengths that were seen."""
    (tmp_path / "seen.csv").write_text("prompt,answer\n3,5\n4,6\n")

    spec = sweep(
        tmp_path,
        workloads="[{kind: multi-turn, name: chat, turns: 2, first_tokens: {uniform: "
        "{low: 5, high: 9}}, turn_tokens: 7, output_tokens: {empirical: seen.csv, column: answer}, "
        "system_tokens: {lognormal: {median: 120, p99: 900}}, think_time: 2 s}]",
    )

    assert spec.workloads[0].workload == MultiTurn(
        name="chat",
        turns=2,
        first_tokens=Uniform(5, 9),
        turn_tokens=Fixed(7),
        output_tokens=Empirical((5, 6)),
        system_tokens=Lognormal(120, 900),
        think_time_ns=2_000_000_000,
    )


def test_loads_have_three_forms(tmp_path: Path) -> None:
    """Closed loop, open loop at a rate, and the times of a trace; each has a name of its own."""
    (tmp_path / "t.jsonl").write_text(MOONCAKE)

    spec = sweep(
        tmp_path,
        workloads="[{kind: trace, path: t.jsonl}]",
        load="[{concurrency: 3, requests: 9}, {rate: 2, duration: 300 s}, "
        "{rate: 2, duration: 300 s, arrivals: constant}, "
        "{rate: 0.5, duration: 1 min, arrivals: {gamma: {cv: 2}}}, "
        "{arrivals: trace, limit: 10, speedup: 4}]",
    )

    assert [(load.mode, load.value, load.arrivals) for load in spec.loads] == [
        ("concurrency", 3, "closed"),
        ("rate", 2.0, "poisson"),
        ("rate", 2.0, "constant"),
        ("rate", 0.5, "gamma"),
        ("trace", None, "trace"),
    ]
    assert [load.label for load in spec.loads] == [
        "concurrency=3", "rate=2", "rate=2,constant", "rate=0.5,gamma(cv=2)",
        "trace,limit=10,speedup=4",
    ]  # fmt: skip
    assert spec.loads[3].facts()["duration_s"] == 60.0
    assert spec.loads[4].facts()["speedup"] == 4.0


def test_a_load_may_shorten_the_answers(tmp_path: Path) -> None:
    """How much is asked belongs to the load: one workload, asked for short answers at one user."""
    spec = sweep(
        tmp_path,
        load="[{concurrency: 1, requests: 5, output_tokens: 4}, {concurrency: 2, requests: 5}]",
    )

    short, full = (choice.under(load) for choice, load in spec.pairs)

    assert isinstance(short, SharedPrefix)
    assert isinstance(full, SharedPrefix)
    assert (short.output_tokens, full.output_tokens) == (Fixed(4), Fixed(8))


def test_a_load_may_be_for_some_workloads(tmp_path: Path) -> None:
    """`workloads` restricts a load; a trace's times go with traces, and the plan says so."""
    (tmp_path / "t.jsonl").write_text(MOONCAKE)

    spec = sweep(
        tmp_path,
        workloads="[{kind: shared-prefix, name: bot, prefix_tokens: 1, suffix_tokens: 1, "
        "output_tokens: 1}, {kind: trace, path: t.jsonl}]",
        load="[{concurrency: 1, requests: 1, workloads: [bot]}, {arrivals: trace}]",
    )

    assert [(choice.name, load.label) for choice, load in spec.pairs] == [
        ("bot", "concurrency=1"),
        ("trace", "trace"),
    ]
    assert spec.notes == ("load trace is for traces only: not run with bot",)


def test_switches_take_either_spelling(tmp_path: Path) -> None:
    """`off`, quoted or not, and `false` are one value; so are `on` and `true`."""
    spec = sweep(
        tmp_path,
        toggles="[{prefix_caching: [true, false]}, {paged_kv: ['off', on]}, "
        "{speculative: [off, ngram]}]",
    )

    assert [[value.label for value in choice.values] for choice in spec.toggles] == [
        ["on", "off"], ["off", "on"], ["off", "ngram"],
    ]  # fmt: skip
    assert spec.baseline["paged_kv"].label == "off"


def test_toggles_carry_words_numbers_and_speculation(tmp_path: Path) -> None:
    """Values become labels that results store; speculation keeps its options."""
    spec = sweep(
        tmp_path,
        toggles="[{tensor_parallel: [2, 4]}, {attention_backend: [auto, flash]}, {speculative: "
        "[off, {method: ngram, tokens: 4}, {method: draft, draft: m, acceptance: 70 %}]}]",
    )

    labels = {choice.name: [value.label for value in choice.values] for choice in spec.toggles}
    assert labels == {
        "tensor_parallel": ["2", "4"],
        "attention_backend": ["auto", "flash"],
        "speculative": ["off", "ngram(tokens=4)", "draft(draft=m,acceptance=0.7)"],
    }


def test_base_moves_where_a_switch_starts(tmp_path: Path) -> None:
    """A switch that base turns off is flipped on; count gives tensor_parallel unless base does."""
    spec = sweep(
        tmp_path, base="{chunked_prefill: off, tensor_parallel: 1}", toggles="[chunked_prefill]"
    )

    assert [value.label for value in spec.toggles[0].values] == ["off", "on"]
    assert spec.baseline["tensor_parallel"].label == "1"


def test_one_entry_needs_no_list(tmp_path: Path) -> None:
    """One engine, toggle, workload and load may stand without brackets."""
    spec = sweep(
        tmp_path,
        engines="embedded",
        toggles="prefix_caching",
        workloads="{kind: shared-prefix, prefix_tokens: 1, suffix_tokens: 1, output_tokens: 1}",
        load="{concurrency: 1, requests: 1}",
    )

    assert len(spec.engines) == len(spec.toggles) == len(spec.workloads) == len(spec.loads) == 1


def test_a_file_is_looked_for_beside_the_sweep_and_then_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep and its trace can be moved together; the message names both places."""
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.chdir(here)
    (here / "t.jsonl").write_text(MOONCAKE)
    workloads = "[{kind: trace, path: t.jsonl}]"

    from_here = sweep(beside, workloads=workloads).workloads[0].workload
    (beside / "t.jsonl").write_text(MOONCAKE)
    from_beside = sweep(beside, workloads=workloads).workloads[0].workload

    assert isinstance(from_here, TraceReplay)
    assert isinstance(from_beside, TraceReplay)
    assert (from_here.path, from_beside.path) == (here / "t.jsonl", beside / "t.jsonl")
    told = only_problem(beside, workloads="[{kind: trace, path: no.jsonl}]")
    assert told.endswith(f"tried {beside / 'no.jsonl'} and {here / 'no.jsonl'}")


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        (MOONCAKE, "mooncake"),
        (MOONCAKE.replace("{", '{"chat_id": 7, "parent_chat_id": -1, ', 1), "bailian"),
        ("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46,5,5\r\n", "azure"),
        ('\n{"input_length": 5, "output_length": 5}\n', "jsonl"),
        ("input_tokens,output_tokens\n5,5\n", "csv"),
    ],
)
def test_a_traces_form_is_seen_from_its_first_line(tmp_path: Path, text: str, format_: str) -> None:
    """Nobody has to know what a published trace is called; milliseconds are never guessed."""
    (tmp_path / "t").write_text(text, encoding="utf-8")

    workload = sweep(tmp_path, workloads="[{kind: trace, path: t}]").workloads[0].workload

    assert isinstance(workload, TraceReplay)
    assert workload.format == format_


@pytest.mark.parametrize(
    ("text", "part"), [("", "the trace is empty"), ("a b c\n1 2 3\n", "has no known trace format")]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, part: str) -> None:
    """The sweep does not begin with a file that nobody can read."""
    (tmp_path / "t").write_text(text)

    assert part in only_problem(tmp_path, workloads="[{kind: trace, path: t}]")


def test_the_same_draws_have_the_same_identity(tmp_path: Path) -> None:
    """A trace is known by its content: moved it is the same workload, changed it is another."""
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_text(MOONCAKE)
    other.write_text(MOONCAKE)

    def identity(path: Path) -> str:
        return sweep(tmp_path, workloads=f"[{{kind: trace, path: {path}}}]").workloads[0].identity

    first = identity(one)
    assert identity(other) == first
    other.write_text(MOONCAKE + MOONCAKE)
    assert identity(other) != first


def test_a_file_of_any_name_names_its_sweep(tmp_path: Path) -> None:
    """The name that a file gives is cut to what a name may be."""
    path = write(tmp_path).rename(tmp_path / f"{'long' * 50}.yaml")

    assert load_sweep(path, environment={}).name == "long" * 25


def test_loads_of_one_level_are_told_apart(tmp_path: Path) -> None:
    """Equal concurrency or rate is no fault: the name then says how much is asked."""
    spec = sweep(
        tmp_path,
        load="[{concurrency: 1, requests: 5}, {concurrency: 1, requests: 50}, "
        "{concurrency: 1, requests: 5, output_tokens: 4}, {concurrency: 2, requests: 5}, "
        "{rate: 1, duration: 60 s}, {rate: 1, duration: 100 s}]",
    )

    assert [load.label for load in spec.loads] == [
        "concurrency=1,requests=5", "concurrency=1,requests=50",
        "concurrency=1,requests=5,output=4", "concurrency=2",
        "rate=1,duration=1min", "rate=1,duration=100s",
    ]  # fmt: skip
    alone = sweep(tmp_path, load="[{concurrency: 1, requests: 5}]").loads[0]
    assert alone.identity() == spec.loads[0].identity()


def test_a_place_of_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    """Of several places the first that the file has; none of them is the file's first line."""
    spec = sweep(tmp_path, base="{max_model_len: 99}")

    where = spec.where(("base", "dtype"), ("base", "max_model_len"))
    assert where == f"{spec.path}: line 8: base.max_model_len: "
    assert spec.where(("slo",)) == f"{spec.path}: line 1: "


def test_a_cap_on_an_open_loop_has_a_name_and_moves_no_other_draws(tmp_path: Path) -> None:
    """Two loads that differ in it are two; one without it is what it was before there were caps."""
    free, capped, trace = sweep(
        with_trace(tmp_path),
        workloads="[{kind: trace, path: t.jsonl}]",
        load="[{rate: 2, duration: 60 s}, {rate: 2, duration: 60 s, max_concurrency: 8}, "
        "{arrivals: trace, max_concurrency: 4}]",
    ).loads

    assert (free.label, capped.label) == ("rate=2", "rate=2,max_concurrency=8")
    assert (capped.max_concurrency, capped.facts()["max_concurrency"]) == (8, 8)
    assert capped.describe().endswith("for 1 min, at most 8 alive")
    assert trace.label == "trace,max_concurrency=4"
    assert "max_concurrency" not in free.identity()
    assert capped.identity()["max_concurrency"] == 8


def with_trace(folder: Path) -> Path:
    """Return the folder, with a trace of one row in it."""
    (folder / "t.jsonl").write_text(MOONCAKE)
    return folder
