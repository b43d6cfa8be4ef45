"""A run is predicted, stored with its prediction, and set beside it in every report."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from known_runs import analysed
from summaries import make_summary

from harness.adapters import ENGINES
from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.speculative import SpeculativeConfig
from harness.adapters.embedded.prediction import ReportedValues, _accepting
from harness.adapters.embedded.step_time.fitted import profile_text
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.reporting import rebuild
from harness.results.analysis import summarize
from harness.results.predictions import PredictedRatio, is_outside, predicted_ratio, roof_shares
from harness.results.report.page import write_report
from harness.results.report.predicted import absent_predictions, predicted_panels
from harness.results.statistics import Ratio
from harness.results.store.manifest import RoofFacts
from harness.results.store.sweep_folder import StoreError, read_runs
from harness.results.summary import AnalysedRun, RunPrediction, parsed_summary
from harness.sweep_file import load_sweep
from tests.harness.experiment.test_sweep import Quiet
from tests.harness.prediction.test_fit import PROFILE

SWEEP = """
name: theirs
model: {model}
hardware: {{gpu: {gpu}, count: 1}}
base: {{max_model_len: 4096}}
engines:
  - {{engine: url, label: prod, url: "{url}", model: llama-3-8b{more}}}
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 640, suffix_tokens: 64, output_tokens: 24}}
load: [{{concurrency: 4, requests: {requests}}}]
blocks: 1
max_failed_share: 0
"""


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of an engine whose step times are the ones that are predicted."""
    words = ["serve", "--port", "0", "--model", "llama-3-8b", "--gpu", "a100-80gb", "--count", "1"]
    command = [sys.executable, "-P", "-m", "harness.cli", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)
        server.stdout.close() if server.stdout else None


def run(
    folder: Path, url: str, *, gpu: str = "a100-80gb", more: str = "", requests: int = 4
) -> Path:
    path = folder / f"{gpu}.yaml"
    text = SWEEP.format(url=url, gpu=gpu, model="llama-3-8b", more=more, requests=requests)
    path.write_text(text, encoding="utf-8")
    engines = {name: kind() for name, kind in ENGINES.items()}
    plan = make_plan(load_sweep(path, engines=tuple(engines)), engines)
    SweepRunner(plan, engines, folder / gpu).run(Quiet())
    return folder / gpu


@pytest.fixture(scope="module")
def known(served: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of hardware whose step times are known, run once for all that read it."""
    return run(tmp_path_factory.mktemp("known"), served, requests=24)


@pytest.mark.alone
def test_predicted_is_set_beside_measured(known: Path, tmp_path: Path) -> None:
    """A server at the very step times that are predicted measures near them, below the roof."""
    out = tmp_path / "out"
    shutil.copytree(known, out)

    summary = rebuild(out).summary
    [arm] = [one for one in summary.arms if one.arm == "baseline"]
    for metric in ("output_tokens_per_s", "tpot_ms.p50"):
        assert arm.predicted is not None
        assert arm.predicted[metric] == pytest.approx(arm.metrics[metric], rel=0.25)
    assert arm.roof is not None
    assert 0 < (arm.roof.decode or 0) < 1
    assert 0 < (arm.roof.prefill or 0) < 1
    assert arm.roof.decode_bound == "memory"
    [panel] = predicted_panels(summary)
    assert any("median error" in remark for remark in panel.notes)
    assert "Predicted beside measured" in (out / "report.html").read_text(encoding="utf-8")


def test_hardware_that_is_not_known_gives_no_prediction_but_the_reason(
    served: str, tmp_path: Path
) -> None:
    """No table, and in its place why."""
    other = summarize(run(tmp_path, served, gpu="cpu"))

    assert predicted_panels(other) == []
    assert "unknown GPU 'cpu'" in absent_predictions(other)[0]


@pytest.mark.alone  # only for the run that it shares with the test above
def test_a_changed_prediction_is_found_out(known: Path, tmp_path: Path) -> None:
    """What stands beside a measurement is what the run wrote."""
    out = tmp_path / "out"
    shutil.copytree(known, out)
    [first, *_] = sorted(out.glob("*/predicted.parquet"))
    first.write_bytes(first.with_name("records.parquet").read_bytes())

    with pytest.raises(StoreError, match=r"predicted\.parquet"):
        list(read_runs(out))


def test_a_profile_predicts_where_no_roofline_can(served: str, tmp_path: Path) -> None:
    """Of the model and machine that it was fitted to."""
    profile = replace(PROFILE, engine="url", model="llama-3-8b", fixed={})
    (tmp_path / "p.json").write_text(profile_text(profile), encoding="utf-8")

    out = run(tmp_path, served, gpu="cpu", more=", profile: p.json", requests=12)

    runs = list(read_runs(out))
    assert all(one.predicted is not None for one in runs)
    [panel] = predicted_panels(summarize(out))
    assert any("fitted to 12 runs" in remark for remark in panel.notes)
    assert "of roof" not in " ".join(panel.arm_heads)


def predicted_run(value: float, error: float | None) -> AnalysedRun:
    values = {"ttft_ms.p50": value}
    prediction = RunPrediction(
        absent=None, basis="b", error_share=error, errors=(), values=values, roof=None
    )
    return replace(analysed({}, prediction=prediction), predicted=values)


def test_the_band_is_what_both_errors_may_make_of_a_ratio() -> None:
    """A tenth either way of both: 1.1 / 0.9; without a known error there is none."""
    found = predicted_ratio([predicted_run(20, 0.1)], [predicted_run(10, 0.05)], "ttft_ms.p50")
    blind = predicted_ratio([predicted_run(20, 0.1)], [predicted_run(10, None)], "ttft_ms.p50")

    assert found.ratio == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0 * 1.1 / 0.9)
    assert found.low == pytest.approx(2.0 * 0.9 / 1.1)
    assert blind == PredictedRatio(ratio=blind.ratio)
    assert blind.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "outside"),
    [
        (1.0, None, None, True),
        (1.9, None, None, False),
        (1.0, 0.9, 1.7, False),
        (1.0, 0.9, 1.1, True),
        (3.0, 2.8, 3.2, True),
        (None, None, None, None),
    ],
)
def test_only_an_effect_that_lies_outside_as_a_whole_is_pointed_at(
    ratio: float | None, low: float | None, high: float | None, outside: bool | None
) -> None:
    """Of an effect with an interval the interval, else the ratio."""
    effect = None if ratio is None else Ratio(ratio=ratio, low=low, high=high, p_value=None)

    assert is_outside(effect, PredictedRatio(ratio=2.0, low=1.6, high=2.4)) is outside
    assert is_outside(effect, PredictedRatio(ratio=2.0)) is None


def test_the_roof_counts_the_tokens_of_a_verified_step() -> None:
    """A step that brings three tokens takes three times TPOT."""
    roof = RoofFacts(decode_step_s=0.012, prefill_s=0.030)
    measured = {"tpot_ms.p50": 8.0, "ttft_ms.p50": 60.0, "mean_accepted_length": 2.0}

    found = roof_shares(roof, measured)

    assert found is not None
    assert (found.decode, found.prefill) == pytest.approx((0.5, 0.5))
    assert roof_shares(None, measured) is None
    assert roof_shares(roof, {}).decode is None  # type: ignore[union-attr]


@pytest.mark.parametrize("tokens", [1.2, 2.5, 4.9])
def test_the_acceptance_gives_back_the_tokens_that_were_measured(tokens: float) -> None:
    """So that a prediction drafts as well as the engine did."""
    speculation = SpeculativeConfig(method="ngram", draft_tokens=4, acceptance=0.5)
    config = EngineConfig(num_blocks=100, max_model_len=512, speculation=speculation)

    found = _accepting(config, tokens).speculation

    assert found is not None
    assert found.mean_tokens_per_step == pytest.approx(tokens, rel=1e-6)
    assert _accepting(config, ReportedValues().tokens_per_step) is config


def test_an_effect_outside_of_its_band_is_pointed_at_on_the_page(tmp_path: Path) -> None:
    """Each toggle's in the table; the control's in words, since then something else changed."""
    summary = make_summary()
    for arm in summary["arms"]:
        arm["predicted"] = {"output_tokens_per_s": 100.0, "ttft_ms.p50": 50.0, "tpot_ms.p50": 5.0}
    for effect in summary["effects"]:
        effect |= {"predicted": 9.0, "predicted_low": 8.0, "predicted_high": 10.0}
        effect["outside"] = is_outside(
            Ratio(ratio=effect["ratio"], low=effect["low"], high=effect["high"], p_value=None),
            PredictedRatio(ratio=9.0, low=8.0, high=10.0),
        )

    panel = predicted_panels(parsed_summary(summary))[0]
    page = write_report(parsed_summary(summary), [], tmp_path / "page.html").read_text(
        encoding="utf-8"
    )

    assert any("outside" in cell for row in panel.effects for cell in row)
    assert any(line.startswith("outside, though nothing was flipped") for line in panel.notes)
    assert "<td>outside</td>" in page
