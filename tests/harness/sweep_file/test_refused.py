from __future__ import annotations

from pathlib import Path

import pytest
from sweep_files import only_problem, problems

MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n'


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """A file with ten faults takes one attempt to mend, not ten."""
    text = """\
nam: x
model: 5
hardware: {gpu: g, count: 0}
engines: [embeded]
base: {max_model_le: 3, prefix_caching: yes}
toggles: [prefix_cacheing, {kv_cache_dtype: [auto, fp9]}]
workloads:
  - {kind: shared-prefix, prefix_tokens: {unifrm: {low: 1}}, suffix_tokens: 1, output_tokens: 1}
load:
  - {concurrency: 0, requests: 4.5}
  - {rate: 2, duration: 300}
"""
    found = problems(tmp_path, text)

    assert [line.split(": ")[0] for line in found] == [
        f"line {number}" for number in (1, 2, 3, 4, 5, 5, 6, 6, 8, 10, 10, 11)
    ]
    assert found[0] == "line 1: unknown key 'nam'; did you mean 'name'?"
    assert "line 4: engines[0]: found 'embeded'; did you mean 'embedded'?" in found
    assert "line 10: load[0].requests: expected a whole number; found 4.5" in found
    assert any("workloads[0].prefix_tokens: unknown key 'unifrm'" in line for line in found)


def test_a_misspelt_key_is_told_once(tmp_path: Path) -> None:
    """An unknown key names its place, itself and the nearest key; what it hides is not missing."""
    found = problems(tmp_path, load="\n  concurency: [1, 8]\n  num_requests: 20")

    assert found == [
        "line 7: load: unknown key 'concurency'; did you mean 'concurrency'?",
        "line 8: load: unknown key 'num_requests'; did you mean 'requests'?",
    ]


BOT = "{kind: shared-prefix, prefix_tokens: 1, suffix_tokens: 1, output_tokens: 1"


CHAT_OF = "[{kind: shared-prefix, prefix_tokens: TOKENS, suffix_tokens: 1, output_tokens: 1}]"


@pytest.mark.parametrize(
    ("section", "value", "told"),
    [
        ("model", "", "model: expected a word; found nothing"),
        ("hardware", "{gpu: a100, cnt: 4}", "hardware: unknown key 'cnt'; did you mean 'count'?"),
        ("engines", "[]", "engines: expected at least one entry; found an empty list"),
        ("engines", "[sglang]", "engines[0]: 'sglang' is not in this version yet"),
        ("engines", "[tensorrt-llm]", "'tensorrt-llm' is not in this version yet"),
        ("engines", "[{engine: url, url: x}]", "engines[0].engine: 'url' is not in this version"),
        (
            "engines",
            "[{engine: embedded, url: x}]",
            "engines[0]: embedded is started here; leave out url",
        ),
        ("engines", "[embedded, embedded]", "engines[1]: 'embedded' is the label of engines[0]"),
        ("base", "engine-defaults", "base: 'engine-defaults' is not in this version yet"),
        ("base", "{memory_utilization: 0}", "expected a share above 0 and at most 1, such as 0.9"),
        ("base", "{memory_utilization: 1.5}", "base.memory_utilization: expected a share above 0"),
        ("base", "{max_num_seqs: 10000001}", "must be at most 10000000, found 10000001"),
        ("name", "x" * 101, "name: expected at most 100 letters; found 'xxx"),
        ("base", "{prefix_cachin: on}", "base: unknown key 'prefix_cachin'; did you mean"),
        ("base", "{batching: [static]}", "base.batching: 'batching' cannot be a list"),
        ("toggles", "[]", "toggles: expected at least one toggle"),
        ("toggles", "[5]", "toggles[0]: expected a toggle such as"),
        ("toggles", "[batching]", "toggles[0]: 'batching' is no switch: name its values"),
        ("toggles", "[{batching: static}]", "toggles[0].batching: expected a list of values"),
        ("toggles", "[{batching: [static]}]", "expected at least two values, each once"),
        ("toggles", "[{batching: [static, none, none]}]", "expected at least two values, each"),
        ("toggles", "[paged_kv, {paged_kv: [on, off]}]", "toggles[1].paged_kv: the toggle 'paged"),
        ("toggles", "[{paged_kv: [on, maybe]}]", "toggles[0].paged_kv[1]: 'paged_kv' cannot be"),
        ("toggles", "[{block_size: [16, big]}]", "expected a whole number of at least 1"),
        ("toggles", "[{attention_backend: [auto, 5]}]", "expected a word; found 5"),
        ("toggles", "[{quantization: [null, int8]}]", "'quantization' cannot be nothing"),
        (
            "toggles",
            "[{speculative: [off, {method: ngram, token: 4}]}]",
            "toggles[0].speculative[1]: unknown key 'token'; did you mean 'tokens'?",
        ),
        (
            "toggles",
            "[{speculative: [off, {method: medusa}]}]",
            "speculative[1].method: found 'medusa'; expected one of: ngram, draft, eagle, eagle3",
        ),
        ("design", "all-at-once", "design: found 'all-at-once'; expected one of: one-at-a-time"),
        ("workloads", f"[{BOT}}}, {BOT}}}]", "workloads[1]: 'shared-prefix' is the name of worklo"),
        ("workloads", "[{turns: 3}]", "workloads[0]: the key 'kind' is missing"),
        ("workloads", "[{kind: structured}]", "workloads[0]: 'structured' is not in this version"),
        ("workloads", f"[{BOT}, groups: 0}}]", "workloads[0].groups: must be at least 1, found 0"),
        ("workloads", f"[{BOT}, name: a/b}}]", "workloads[0].name: expected letters, digits"),
        (
            "workloads",
            "[{kind: shared-prefix, prefix_tokens: 1, suffix_tokens: 0, output_tokens: 1}]",
            "suffix and output must have at least 1 token",
        ),
        (
            "workloads",
            "[{kind: shared-prefix, prefix_tokens: {uniform: {low: 9, high: 2}}}]",
            "workloads[0]: the key 'suffix_tokens' is missing",
        ),
        (
            "workloads",
            (
                "[{kind: shared-prefix, prefix_tokens: 1, suffix_tokens: {uniform: {low: 9, "
                "high: 2}}, output_tokens: {lognormal: {median: 9, p99: 3}}}]"
            ),
            "workloads[0].output_tokens: lognormal lengths need 1 ≤ median < p99",
        ),
        (
            "workloads",
            (
                "[{kind: multi-turn, turns: 2, first_tokens: 1, turn_tokens: {uniform: {low: 9, "
                "high: 2}}, output_tokens: 1}]"
            ),
            "workloads[0].turn_tokens: uniform lengths need 1 ≤ low ≤ high, not low 9, high 2",
        ),
        ("workloads", "[{kind: trace, path: /}]", "workloads[0].path: / is a folder; expected a f"),
        ("workloads", "[{kind: trace, path: ~nobody-here/x}]", "there is no file ~nobody-here/x"),
        (
            "workloads",
            f"[{{kind: trace, path: {'x' * 5000}}}]",
            "workloads[0].path: there is no fi",
        ),
        (
            "workloads",
            "[{kind: shared-prefix, prefix_tokens: many, suffix_tokens: 1, output_tokens: 1}]",
            "workloads[0].prefix_tokens: expected a number of tokens, or one of",
        ),
        *(
            (
                "workloads",
                CHAT_OF.replace("TOKENS", str(n)),
                f"workloads[0].prefix_tokens: expected 0 to 10,000,000 tokens; found {n}",
            )
            for n in (-1, 10_000_001, 900_000_000_000)
        ),
        (
            "workloads",
            "[{kind: multi-turn, turns: 2, history: lively}]",
            "workloads[0].history: found 'lively'",
        ),
        ("load", "[]", "load: expected at least one entry"),
        ("load", "[{concurrency: 0, requests: 1}]", "load[0].concurrency: must be at least 1"),
        ("load", "[{concurrency: 1, requests: true}]", "load[0].requests: expected a whole number"),
        ("load", "[{concurrency: 1}]", "load[0]: the key 'requests' is missing"),
        ("load", "[{rate: 0, duration: 1 s}]", "load[0].rate: must be more than 0, found 0"),
        ("load", "[{rate: 1, duration: 0 s}]", "load[0].duration: must be more than 0"),
        (
            "load",
            "[{rate: 1, duration: -1 s}]",
            "load[0].duration: a duration must not be negative",
        ),
        ("load", "[{rate: 2000000, duration: 1 s}]", "load[0].rate: must be at most 1000000, f"),
        ("load", "[{concurrency: 1, duration: 1 s}]", "concurrency goes with requests, rate with"),
        (
            "load",
            "[{concurrency: 1, requests: 1, rate: 1, duration: 1 s}]",
            (
                "load[0]: concurrency goes with requests, rate with duration; a load has one of "
                "the pairs, found concurrency, requests, duration, rate"
            ),
        ),
        (
            "load",
            "[{arrivals: trace, rate: 1}]",
            "arrivals: trace takes its times from the trace; ",
        ),
        ("load", "[{rate: 1, duration: 1 s, arrivals: burst}]", "load[0].arrivals: found 'burst'"),
        ("load", "[{arrivals: trace}]", "arrivals: trace needs a workload of kind trace"),
        (
            "load",
            "[{concurrency: 1, requests: 1, workloads: [shared-prefx]}]",
            "load[0].workloads[0]: there is no workload 'shared-prefx'; did you mean",
        ),
        (
            "load",
            "[{concurrency: 1, requests: 1}, {concurrency: 1, requests: 1}]",
            "load[1]: concurrency=1,requests=1 is load[0] again for shared-prefix; keep one",
        ),
        ("load", "[{concurrency: 1, requests: 1, output_tokens: 0}]", "load[0].output_tokens: "),
        (
            "load",
            "[{concurrency: 1, requests: 1, output_tokens: {uniform: {low: 9, high: 2}}}]",
            "load[0].output_tokens: uniform lengths need 1 ≤ low ≤ high",
        ),
        ("blocks", "auto", "blocks: 'auto' is not in this version yet"),
        ("blocks", "0", "blocks: must be at least 1, found 0"),
        ("cache", "warm", "cache: found 'warm'"),
        ("slo", "{ttft: 100}", "slo.ttft: expected a duration with its unit"),
        ("slo", "{tpot: 0 ms}", "slo.tpot: must be more than 0"),
        ("price_per_gpu_hour", "-1", "price_per_gpu_hour: must be at least 0, found -1"),
        ("seed", "-1", "seed: must be at least 0, found -1"),
        ("max_failed_share", "5", "max_failed_share: expected a share"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    tmp_path: Path, section: str, value: str, told: str
) -> None:
    """Each fault is the one problem of its file, and says what was expected."""
    found = problems(tmp_path, **{section: value})

    assert any(told in line for line in found), found
    assert all(section in line for line in found), found


def test_a_workload_that_no_load_is_for_is_refused(tmp_path: Path) -> None:
    """A workload is never dropped in silence."""
    told = problems(
        tmp_path,
        workloads=f"[{BOT}, name: a}}, {BOT}, name: b}}]",
        load="[{concurrency: 1, requests: 1, workloads: [a]}]",
    )

    assert told == ["line 4: workloads[1]: no load is for 'b'"]


def test_base_and_first_value_must_agree(tmp_path: Path) -> None:
    """Two baselines in one file are none."""
    told = only_problem(
        tmp_path, base="{kv_cache_dtype: fp8}", toggles="[{kv_cache_dtype: [auto, fp8]}]"
    )

    assert "the first value is the base, but it is auto and base says fp8" in told


def test_a_traces_answers_cannot_be_shortened(tmp_path: Path) -> None:
    """A trace brings its own lengths; a load that would change them is refused, not ignored."""
    (tmp_path / "t.jsonl").write_text(MOONCAKE)

    told = only_problem(
        tmp_path,
        workloads="[{kind: trace, path: t.jsonl}]",
        load="[{concurrency: 1, requests: 1, output_tokens: 5}]",
    )

    assert "the trace 'trace' has its own answer lengths" in told


def test_a_design_that_the_toggles_cannot_make_is_refused(tmp_path: Path) -> None:
    """Leave-one-out needs one flip a toggle, and a grid has its limit."""
    several = "[{quantization: [none, int8, int4]}]"
    grid = f"[{', '.join(f'{{block_size: {list(range(1, 5001))}}}' for _ in range(1))}]"

    assert "leave-one-out needs two values a toggle" in only_problem(
        tmp_path, toggles=several, design="leave-one-out"
    )
    assert "full has 5,000 arms" in only_problem(tmp_path, toggles=grid, design="full")
