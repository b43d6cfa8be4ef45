"""`harness capacity`: what it says is what the embedded engine itself does."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from repository import ROOT

from harness.adapters.base import BASELINE, TOGGLES, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import deployment, step_time
from harness.adapters.embedded.capacity import CONTEXTS_TOKENS, Capacity, capacity_of
from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.scheduler import Scheduler
from harness.adapters.embedded.step_time.roofline import StepTime
from harness.cli import main
from harness.commands.arguments.capacity import KV_DTYPES, QUANTIZATIONS

PAGE = ROOT / "docs" / "capacity.md"


def settings(**changes: Any) -> EngineSettings:
    """Return Llama-3-70B on four A100-80GB at contexts of 4,096 tokens, with `changes`."""
    toggles = {**BASELINE, "tensor_parallel": ToggleValue("4"), **changes.pop("toggles", {})}
    given = {"model": "llama-3-70b", "gpu": "a100-80gb", "gpu_count": 4, "max_model_len": 4096}
    return EngineSettings(**{**given, **changes}, toggles=toggles)


FOUR_A100 = capacity_of(settings())


def users(found: Capacity, context_tokens: int, dtype: str) -> int:
    [row] = [
        row
        for row in found.users
        if (row.context_tokens, row.kv_cache_dtype) == (context_tokens, dtype)
    ]
    return row.users


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["capacity", *words]) == 0
    return capsys.readouterr().out


def test_known_numbers_of_the_reference_setup() -> None:
    """327,680 bytes a token, eight times fewer than without grouped heads, 153 FLOP a byte."""
    token = FOUR_A100.token

    assert token.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2 == 327_680
    assert token.kv_bytes_per_token_per_gpu == 327_680 // 4
    assert (token.heads, token.kv_heads, token.grouped_heads_saving_ratio) == (64, 8, 8.0)
    assert FOUR_A100.memory.weights_bytes == 2 * FOUR_A100.parameters == 141_107_412_992
    assert FOUR_A100.crossover_flops_per_byte == pytest.approx(312e12 / 2.039e12)
    assert FOUR_A100.fit.fits


def test_narrow_caches_hold_more_users() -> None:
    """FP8 holds twice as many as FP16; INT4 almost four times, its scales take the rest."""
    for context in CONTEXTS_TOKENS[:2]:
        wide, fp8, int4 = (users(FOUR_A100, context, kind) for kind in ("auto", "fp8", "int4"))
        assert fp8 == pytest.approx(2 * wide, abs=1)
        assert 3.8 * wide < int4 < 4 * wide


def test_the_engine_runs_as_many_users_as_are_told() -> None:
    """So many sequences of the context never lose a block; more of them do not fit at once."""
    found = capacity_of(settings(max_model_len=1024))
    told = users(found, 1024, "auto")
    blocks = found.memory.kv_room_tokens // found.memory.block_tokens

    def preemptions(sequences: int) -> int:
        config = EngineConfig(
            num_blocks=blocks,
            max_model_len=1024,
            max_num_seqs=10_000,
            max_batched_tokens=2**20,
            prefix_caching=False,
        )
        core = EngineCore(config, step_time(settings()))
        for number in range(sequences):
            core.submit(np.full(512, number, np.int32), 512, 0)
        now_ns = 0
        while core.has_work:
            now_ns, _ = core.advance(now_ns)
        assert core.counters().peak_running == sequences
        return core.counters().preemptions or 0

    assert preemptions(told) == 0
    assert preemptions(told + 2) > 0


def test_contiguous_users_are_the_regions_of_the_engine() -> None:
    """Without paged blocks the pool has exactly so many regions; paged ones follow the use."""
    for row in FOUR_A100.layouts:
        pool = EngineConfig(
            num_blocks=FOUR_A100.memory.kv_room_tokens // 16, max_model_len=4096, paged_kv=False
        )
        assert Scheduler(pool).kv.free == row.contiguous_users * pool.blocks_for(4096)
        assert row.contiguous_waste_share == pytest.approx(1 - row.used_tokens / 4096)
        assert row.paged_waste_at_most_share == pytest.approx(15 / row.used_tokens)
        assert row.paged_users == FOUR_A100.memory.kv_room_tokens // row.used_tokens


def test_binding_sides_stand_against_the_crossover() -> None:
    """Of the weights alone a batch has about its own FLOP a byte; a long context holds it below."""
    alone = {row.sequences: row for row in FOUR_A100.decode if row.context_tokens == 0}
    long = {row.sequences: row for row in FOUR_A100.decode if row.context_tokens == 4096}

    assert [alone[batch].binding_side for batch in (1, 32, 256, 1024)] == [
        "memory",
        "memory",
        "compute",
        "compute",
    ]
    assert {row.binding_side for row in long.values()} == {"memory"}
    for row in FOUR_A100.decode:
        assert (row.flops_per_byte > FOUR_A100.crossover_flops_per_byte) == (
            row.binding_side == "compute"
        )
        assert row.floor_s == max(row.bytes_floor_s, row.flops_floor_s) < row.predicted_s
    for batch in (1, 32):
        assert alone[batch].flops_per_byte == pytest.approx(batch, rel=0.01)
    assert [row.fits_kv_room for row in long.values()] == [True, True, False, False]


def test_floors_and_predictions_are_those_of_the_step_times() -> None:
    """No second formula: the page repeats what the engine's own clock runs on."""
    timer = StepTime(deployment(settings()))
    one = next(row for row in FOUR_A100.decode if row.context_tokens == 4096)

    assert one.floor_s == timer.roof_s(1, 1, 4096, ()) == pytest.approx(1 / 58.1, rel=1e-3)
    assert one.predicted_s == timer.step_s(1, 1, 4097, (), 1)
    prefill = FOUR_A100.prefill
    assert prefill.floor_s == timer.roof_s(0, 1, 0, [(4096, 0)])
    chunks = [timer.step_s(0, 1, 0, [(512, at)], int(at == 3584)) for at in range(0, 4096, 512)]
    assert prefill.predicted_chunked_s == pytest.approx(sum(chunks))
    assert prefill.floor_s < prefill.predicted_one_step_s < prefill.predicted_chunked_s


def test_a_model_that_does_not_fit_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """By how much, and what would make it fit: GPUs, quantization, larger GPUs; exit code 0."""
    text = printed(capsys, "--count", "1")
    document = json.loads(printed(capsys, "--count", "1", "--json"))

    assert "DOES NOT FIT" in text
    assert "133.3 GiB" in text
    assert "62.0 GiB are missing" in text
    assert "use 2 GPUs, or quantization int8, or quantization int4" in text
    assert "GPUs with enough memory: 1 x b200" in text
    assert "users at once" not in text
    assert document["fit"]["fits"] is False
    assert document["memory"]["kv_room_bytes"] == pytest.approx(-62.0 * 2**30, rel=1e-3)
    assert {row["users"] for row in document["users"]} == {0}


def test_a_context_that_is_too_long_for_the_room_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the weights fit and the context does not, shorter ones are still shown."""
    words = ("--model", "llama-3.1-8b", "--count", "1", "--memory-utilization", "0.25", "--context")
    text = printed(capsys, *words, "65536")

    assert "DOES NOT FIT" in text
    assert "less than one sequence" in " ".join(text.split())
    assert "2,048 tokens" in text


def test_each_gpu_of_a_copy_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer GPUs to a copy there are more copies; figures are of one of them."""
    document = json.loads(
        printed(capsys, "--model", "llama-3-8b", "--tensor-parallel", "2", "--json")
    )

    assert (document["gpu_count"], document["tensor_parallel"], document["copies"]) == (4, 2, 2)
    assert "2 copies of the model, each on 2 GPUs" in printed(
        capsys, "--model", "llama-3-8b", "--tensor-parallel", "2"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--context", "131072", "--model", "llama-3.1-8b", "--count", "1", "--kv-dtype", "int8"),
        ("--model", "llama-3.1-405b", "--gpu", "h100-80gb", "--count", "8"),
        ("--gpu", "h200", "--quantization", "fp8", "--context", "100000"),
        ("--model", "llama-3-8b", "--count", "2", "--tensor-parallel", "1"),
    ],
)
def test_lines_stay_within_100_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is asked, no line is wider than a terminal of 100 columns."""
    lines = printed(capsys, *words).splitlines()

    assert max(map(len, lines)) <= 100
    assert "simulated" in lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "lama-3-70b"), "unknown model 'lama-3-70b'; did you mean 'llama-3-70b'?"),
        (("--gpu", "a100"), "unknown GPU 'a100'; did you mean 'a100-40gb' or 'a100-80gb'?"),
        (("--count", "3"), "tensor_parallel 3 cannot split llama-3-70b"),
        (("--count", "4", "--tensor-parallel", "8"), "into groups of tensor_parallel 8"),
        (("--quantization", "fp8"), "quantization fp8 needs FP8 arithmetic"),
        (("--context", "0"), "expected a whole number of at least 1, found '0'"),
        (("--memory-utilization", "1.5"), "expected a share above 0 and up to 1"),
        (("--context", "1", "--context", "2"), "--context is given twice; give it once"),
    ],
)
def test_what_cannot_be_is_exit_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown names and impossible numbers end with one clear line and nothing on stdout."""
    try:
        code = main(["capacity", *words])
    except SystemExit as usage:
        code = int(usage.code or 0)

    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert said in told.err


def test_options_are_the_values_of_the_toggles() -> None:
    """The words of the line are those of a sweep file."""
    assert TOGGLES["kv_cache_dtype"] == KV_DTYPES
    assert TOGGLES["quantization"] == QUANTIZATIONS


def test_every_quantity_of_the_json_names_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """A number has its unit in its key; counts of things are named after them."""
    document = json.loads(printed(capsys, "--json"))
    known = re.compile(
        r".*(_bytes|_bytes_per_\w+|_tokens|_s|_share|_ratio|_flops_per_byte|flops_per_byte)$"
        r"|parameters|gpu_count|tensor_parallel|copies|users|\w+_users|heads|kv_heads|sequences"
        r"|reserved_sequences|kv_bytes_per_token(_per_gpu)?|weights_bytes_per_gpu"
    )

    def numbers(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                numbers(inner, name)
        elif isinstance(value, list):
            for inner in value:
                numbers(inner, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            assert known.fullmatch(key), key

    assert document["simulated"] is True
    numbers(document)


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The text in the page is the real one, from its first line to the floors of prefill."""
    text = printed(capsys)
    shown = text[: text.index("\none user at")].strip()

    assert shown in PAGE.read_text(encoding="utf-8")
