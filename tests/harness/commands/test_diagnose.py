"""`harness diagnose`: one page for many runs, the facts that it needs, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosed import diagnosed, play
from known_runs import known_manifest, late_client, steady_records
from served import Served, with_server

from harness.adapters.attached import server as attach
from harness.adapters.attached.server import Attached
from harness.adapters.base import BASELINE, EngineSettings, ServerCounters, Target, ToggleValue
from harness.adapters.embedded.adapter import deployment
from harness.adapters.embedded.capacity import decode_floor
from harness.adapters.embedded.step_time.roofline import StepTime
from harness.adapters.http_queries import HttpReply
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.reported import totals_of
from harness.cli import main
from harness.experiment.counter_moves import counter_moves
from harness.results.diagnosis.document import diagnosis
from harness.results.diagnosis.limits import LIMITS
from harness.results.store.sweep_folder import create_sweep, read_runs, write_run, write_sweep
from harness.workloads.base import Segment
from harness.workloads.prompts.overlap import overlap_of

QUEUE = 'vllm:request_queue_time_seconds_sum{engine="0"} 1.25\n'
SWITCHES = (
    "[prefix_caching, cuda_graphs, chunked_prefill, {batching: [continuous, static, none]}, "
    "{quantization: [none, int8]}]"
)
BUSY = "{concurrency: 24, requests: 96}"
SYSTEM_PROMPT = (
    "{kind: shared-prefix, name: w, prefix_tokens: 1600, suffix_tokens: 100, "
    "output_tokens: {uniform: {low: 20, high: 200}}}"
)


def stored(folder: Path, **changes: Any) -> Path:
    """Store one run of known records as a sweep and return its folder."""
    create_sweep(folder / "runs")
    manifest = known_manifest(**changes)
    plan = {"name": "known", "created": "2026-01-01T00:00:00+00:00", "model": "m", "seed": 1}
    planned = {**plan, "hardware": manifest.model_dump()["hardware"], "planned": []}
    write_sweep(folder / "runs", planned)
    write_run(folder / "runs", manifest.key, manifest, steady_records(2, 20))
    return folder / "runs"


def test_a_sweep_of_many_runs_is_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bottleneck appears once with its arms, at most 100 columns wide."""
    folder = play(tmp_path, toggles=SWITCHES, workload=SYSTEM_PROMPT, load=BUSY)

    assert main(["diagnose", str(folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 50
    assert max(map(len, lines)) <= 100
    assert "SIMULATED" in lines[0]
    text = " ".join(" ".join(lines).split())
    assert text.count("BATCH SLOTS ARE IDLE") == 1
    assert "(batching static, batching none)" in text
    assert "no bottleneck found: baseline" in text
    assert "try: turn prefix_caching on" in text


def test_the_document_holds_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints each run's bottleneck, all measured values and the limits."""
    folder = play(tmp_path, toggles="[prefix_caching]", workload=SYSTEM_PROMPT)

    assert main(["diagnose", str(folder), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["limits"]] == [limit.name for limit in LIMITS]
    runs = {run["arm"]: run for run in document["runs"]}
    assert runs["prefix_caching=off"]["bottleneck"] == "cache_unused"
    found = runs["prefix_caching=off"]["findings"][0]
    assert found["value"] > found["limit"] == 0.2
    assert (found["unit"], found["next"]) == ("share", "turn prefix_caching on")
    assert set(runs["baseline"]["measured"]) == {limit.name for limit in LIMITS}
    [panel] = document["panels"]
    assert panel["findings"][0]["bottleneck_of"] == ["prefix_caching off"]


def test_nothing_in_the_folder_changes(tmp_path: Path) -> None:
    """`harness diagnose` writes neither a summary nor plots."""
    folder = play(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    main(["diagnose", str(folder)])

    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_late_client_is_the_first_finding(tmp_path: Path) -> None:
    """A client that is late comes before every other finding of the run."""
    folder = play(tmp_path, base="{max_model_len: 8192, max_num_seqs: 2}", load=BUSY)
    [run, *_] = list(read_runs(folder))
    manifest = {
        **run.manifest.model_dump(),
        "clock": "monotonic",
        "client": late_client(p99_ms=300.0),
    }
    path = next(folder.glob(f"{manifest['key'][:12]}*")) / "manifest.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")

    [late] = [one for one in diagnosis(folder).document()["runs"] if one["key"] == manifest["key"]]

    assert late["status"] == "invalid"
    assert [one["name"] for one in late["findings"]] == ["client", "queue"]
    assert "INVALID: " in late["findings"][0]["evidence"]
    assert "harness load" in late["findings"][0]["next"]


def test_a_client_on_virtual_time_is_no_limit(tmp_path: Path) -> None:
    """On virtual time the client takes no time, so the rule does not apply."""
    run = diagnosed(tmp_path)["baseline"]

    assert run["measured"]["client"] is None
    assert "client" not in run["unjudged"]


def test_what_is_not_stored_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without counters and facts has no finding, and the output lists the missing data."""
    folder = stored(tmp_path, toggles={}, clock="monotonic")

    assert main(["diagnose", str(folder)]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert "no bottleneck found: baseline" in text
    for why in (
        "the client's own measurement is not stored",
        "the number of preemptions is not stored",
        "the size of the KV cache is not stored",
        "the batching mode of the engine is not stored",
        "the overlap of the prompts is not stored",
        "the state of CUDA graphs (on or off) is not stored",
        "the time in the engine's queue is not stored",
    ):
        assert f"”: {why}" in text
    assert diagnosis(folder).document()["runs"][0]["measured"]["queue"] is None


def test_a_void_run_is_not_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A void run has no findings; the exit code is the same as that of `harness report`."""
    folder = stored(tmp_path, status="void", reason="prefix_caching: on was asked for")

    assert main(["diagnose", str(folder)]) == 1

    assert "not diagnosed: 1 run void" in capsys.readouterr().out
    assert diagnosis(folder).document()["runs"][0]["judged"] is False


@pytest.mark.parametrize("name", ["missing", "sweep.yaml"])
def test_a_folder_of_no_sweep_is_exit_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line on stderr, as for `harness report`; stdout is empty."""
    (tmp_path / "sweep.yaml").write_text("", encoding="utf-8")

    assert main(["diagnose", str(tmp_path / name)]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected the folder of a sweep" in printed.err


def test_the_queue_time_of_vllm_is_read_in_seconds() -> None:
    """VLLM reports the sum over finished requests in seconds; it is stored in nanoseconds."""
    assert totals_of(ServerMetrics(QUEUE), None).queued_ns == 1_250_000_000
    assert totals_of(ServerMetrics(""), None).queued_ns is None


def test_the_queue_time_of_an_attached_server_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any server with vLLM's metric name gives the increase over the run."""
    pages = iter((QUEUE, QUEUE.replace("1.25", "3.5")))
    monkeypatch.setattr(attach, "query", lambda *_, **__: HttpReply(200, next(pages).encode()))
    server = Attached(
        transport=Target(url="http://h", model="m"),
        engine_version="1",
        engine_kind="real",
        max_model_len=None,
        waited_s=0.0,
    )

    before = server.counters()
    moved, _ = counter_moves(before, server.counters())

    assert moved == ServerCounters(queued_ns=2_250_000_000)


def test_the_served_engine_reports_its_queue_time() -> None:
    """`harness serve` exports vLLM's queue histogram."""

    async def main_(served: Served) -> None:
        for _ in range(2):
            await served.post("/v1/completions", prompt=list(range(100)), max_tokens=4)

        assert await served.metric("vllm:request_queue_time_seconds_count") == 2
        assert await served.metric("vllm:request_queue_time_seconds_sum") < 1

    with_server(main_)


def test_floors_are_those_of_the_roofline() -> None:
    """The floor is the time to read the weights and the KV of all contexts once."""
    toggles = {**BASELINE, "tensor_parallel": ToggleValue("4")}
    settings = EngineSettings(
        model="llama-3-70b", gpu="a100-80gb", gpu_count=4, max_model_len=4096, toggles=toggles
    )
    floor = decode_floor(settings)
    roof_s = StepTime(deployment(settings)).roof_s(1, 1, 3000, ())

    assert floor is not None
    assert floor.step_s + 3000 * floor.context_token_s == pytest.approx(roof_s, rel=1e-9)
    other = EngineSettings(
        model="llama-3-70b", gpu="cpu", gpu_count=1, max_model_len=4096, toggles=toggles
    )
    assert decode_floor(other) is None


def test_overlap_counts_repeated_tokens_after_the_first_unique_one() -> None:
    """A token is either shared from the start or repeated after unique text, never both."""
    own, other, system, request_set = (Segment(text, 10 * text) for text in (1, 2, 3, 4))
    prompts = [(own, system), (other, system, request_set), (own, system, request_set)]

    found = overlap_of(zip(prompts, (0, 0, 40), strict=True))

    assert found is not None
    assert (found.prompt_tokens, found.shared_tokens) == (40 + 90 + 80, 40)
    assert found.hidden_tokens == 30 + 40  # the system prompt of the second, question of the third
    assert found.diverge_after_tokens == 0
    assert overlap_of([]) is None
