"""Predictions of the embedded engine against published measurements, and the script for them."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from published_values import PAGE, errors_of, measured, tables
from reference_numbers import written
from repository import ROOT

from harness.adapters.embedded.step_time.accuracy import (
    ACCURACIES,
    BATCH,
    BETWEEN_TOKENS,
    DECODE,
    H100_BATCH,
    L40S_BATCH,
    PREFILL,
    StepTimeAccuracy,
    accuracy_of,
    known_step_errors,
)
from harness.adapters.embedded.step_time.hardware import find_gpu

ERRORS = {
    comparison: [error for _, error in pairs] for comparison, pairs in errors_of(measured()).items()
}


@pytest.mark.parametrize("comparison", ACCURACIES, ids=lambda one: one.what[:30])
def test_the_stated_errors_are_those_measured(comparison: StepTimeAccuracy) -> None:
    """The printed count, median and worst error equal the recomputed ones."""
    errors = [abs(error) for error in ERRORS[comparison]]

    assert comparison.values == len(errors)
    assert comparison.median_percent == pytest.approx(statistics.median(errors), abs=0.05)
    assert comparison.worst_percent == pytest.approx(max(errors), abs=0.05)


@pytest.mark.parametrize(
    ("comparison", "aim_percent", "share"),
    [
        (DECODE, 8, 0.95),
        (PREFILL, 10, 0.95),
        (BATCH, 15, 0.95),
        (BETWEEN_TOKENS, 8, 0.85),
        (H100_BATCH, 15, 0.9),
        (L40S_BATCH, 15, 1.0),
    ],
    ids=["decode", "prefill", "batch", "between", "h100", "l40s"],
)
def test_nearly_all_predictions_are_within_the_aim(
    comparison: StepTimeAccuracy, aim_percent: float, share: float
) -> None:
    """Decode is within 8 %, prefill within 10 %, throughput within 15 %, without bias."""
    errors = ERRORS[comparison]
    within = sum(abs(error) <= aim_percent for error in errors)

    assert within >= share * len(errors)
    assert abs(statistics.median(errors)) < aim_percent / 2


def test_the_page_shows_the_current_errors() -> None:
    """Both tables of docs/prediction.md are those that `published_values.py` writes."""
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, tables()) == page
    assert page.count("<!-- comparisons -->") == page.count("<!-- single values -->") == 1


def test_reports_state_the_accuracy_of_step_times() -> None:
    """A GPU has one sentence per comparison, or a sentence that there was none."""
    sentences = [accuracy_of(find_gpu(name)) for name in ("a100-80gb", "h100-80gb", "l40s")]
    assert sorted(sum(sentences, ())) == sorted(one.sentence for one in ACCURACIES)
    assert all("median error" in sentence and "worst" in sentence for sentence in sentences[0])
    (other,) = accuracy_of(find_gpu("h200"))
    assert "were not compared with measurements" in other
    assert known_step_errors(find_gpu("h100-80gb")) == (BETWEEN_TOKENS,)
    assert known_step_errors(find_gpu("h200")) == ()


TABLES = {
    "vidur/layer_nonattention.csv": (
        "gpu,model,tp,tokens,input_layernorm_ms,attn_rope_ms,post_attention_layernorm_ms,"
        "mlp_act_ms,add_ms,gemm_ms\n"
        "A100,Meta-Llama-3-8B,1,1,0.008,0.006,0.008,0.003,0.002,0.276\n"
        "A100,Meta-Llama-3-8B,1,512,0.012,0.012,0.012,0.046,0.006,0.994\n"
    ),
    "ops/generation_attention_a100.csv": (
        "backend,num_heads,num_key_value_heads,batch_size,kv_len,latency_ms\n"
        "vllm,32,8,1,512,0.0189\nvllm,32,8,1,1024,0.02\nsglang,32,8,1,512,9\n"
    ),
    "ops/context_attention_a100.csv": (
        "backend,num_heads,num_key_value_heads,batch_size,isl,latency_ms\n"
        "vllm,32,8,1,512,0.0415\nvllm,32,8,1,1024,0.0967\n"
    ),
    "published.csv": (
        "source,hardware,gpus,model,dtype,engine,in_len,out_len,rate_or_concurrency,metric,value,"
        "unit\nNVIDIA docs,A100-80GB,4,Llama-2-70B,fp16,TensorRT-LLM,2048,1,batch 1,"
        "first token latency,377,ms\nNVIDIA docs,A100-80GB,2,LLaMA-7B,fp16,TensorRT-LLM,256,16,"
        "batch 2,output throughput per GPU,50,tok/s/GPU\nNVIDIA docs,H100-80GB,4,Llama-2-70B,fp8,"
        "TensorRT-LLM,2048,1,batch 1,first token latency,109,ms\n"
    ),
}


def test_the_script_compares_tables_with_predictions(tmp_path: Path) -> None:
    """Complete sets of kernels are summed over the layers; a point in no table is skipped."""
    for name, text in TABLES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    done = _script(tmp_path, "--all", "--write", tmp_path / "figures.csv")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    (decode,) = [line for line in lines if line.startswith("decode llama-3-8b") and "x 512" in line]
    assert f"{32 * (0.276 + 0.027 + 0.0189):.1f} ms" in decode
    (prefill,) = [line for line in lines if line.startswith("prefill llama-3-8b 1 x")]
    assert f"{32 * (0.994 + 0.088 + 0.0415):.1f} ms" in prefill
    assert any("100.0 tokens/s" in line for line in lines)  # of both GPUs together
    with (tmp_path / "figures.csv").open(encoding="utf-8", newline="") as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    assert kinds == ["decode", "decode", "prefill", "first_token", "batch", "first_token"]


def test_the_script_refuses_a_folder_without_tables(tmp_path: Path) -> None:
    """An empty folder gives a one-line error instead of an empty table."""
    done = _script(tmp_path)
    assert done.returncode == 2
    assert "contains no table" in done.stderr


def _script(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "prediction.py", folder, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
