"""The TensorRT-LLM adapter against a stand-in that takes its options and has its quirks.

The real one was never run: these tests prove what the adapter does, not what TensorRT-LLM does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_in import processes_with
from trtllm_settings import VERSIONS, installed, settings

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.http_queries import query
from harness.adapters.process import server
from harness.adapters.runtime import Runtime
from harness.adapters.tensorrt_llm import records as tensorrt_llm_records
from harness.adapters.tensorrt_llm.adapter import TensorRtLlmAdapter, TensorRtLlmEndpoint
from harness.experiment.evidence import Exercise, Triple, examine

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

ADAPTER = TensorRtLlmAdapter(poll_s=0.1)
SHARED = list(range(1000, 1700))  # a prefix of 21 whole blocks of 32
NGRAM = ToggleValue("ngram", (("tokens", 4),))
READER = "iteration records"  # the thread's name


def complete(endpoint: TensorRtLlmEndpoint, prompt: list[int], tokens: int = 4, **more: Any) -> Any:
    asked = {"model": endpoint.transport.model, "prompt": prompt, "max_tokens": tokens, **more}
    return query(endpoint.transport.url, "/v1/completions", asked, timeout_s=30.0)


def verdicts(asked: EngineSettings) -> Mapping[str, Triple]:
    """Return the evidence of eight requests that share a prefix, as if the engine were real."""
    with ADAPTER.start(asked) as endpoint:
        endpoint.reset()
        before = asdict(endpoint.counters())
        prompts = [[*SHARED, *range(number, number + 20)] for number in range(8)]
        complete(endpoint, prompts[0], 20)  # what it leaves, the others find
        with ThreadPoolExecutor(8) as pool:
            late = pool.submit(complete, endpoint, prompts[1], 120)
            time.sleep(0.05)
            list(pool.map(lambda prompt: complete(endpoint, prompt, 20), prompts[2:]))
            late.result()
        after = asdict(endpoint.counters())
        moved = {
            name: n if n is None or name == "peak_running" else n - (before[name] or 0)
            for name, n in after.items()
        }
        exercise = Exercise(
            prefix_hit_ceiling=0.8,
            longest_prompt_tokens=len(SHARED) + 20,
            most_in_flight=7,
            kv_tokens=endpoint.facts()["kv_tokens"],
        )
        return examine(asked, endpoint.effective(), ServerCounters(**moved), exercise)


def model_folder(folder: Path) -> Path:
    """Return a model whose name no other process has in its words."""
    model = folder / f"model-{folder.name}-{os.getpid()}"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 4096}), encoding="utf-8")
    return model


def test_a_started_engine_says_what_it_is(tmp_path: Path) -> None:
    """Version, kind, where to ask and by what name, and the options that started it."""
    model = model_folder(tmp_path)
    asked = replace(
        settings(),
        model=str(model),
        env={"TLLM_LOG_LEVEL": "info", "HF_TOKEN": "s3cret"},
        log_path=tmp_path / "logs" / "arm.block0.log",
    )
    with ADAPTER.start(asked) as endpoint:
        endpoint.reset()
        facts = endpoint.facts()
        assert endpoint.transport.url.startswith("http://127.0.0.1:")
        assert (endpoint.transport.model, endpoint.transport.vocabulary) == (model.name, 4096)
        assert endpoint.transport.fields == {
            "seed",
            "detokenize",
            "ignore_eos",
            "include_usage",
            "continuous_usage_stats",
        }
        assert (endpoint.engine_version, endpoint.engine_kind) == ("1.3.0rc3", "stand-in")
        assert facts["block_size"] == 32
        assert facts["kv_tokens"] == 32 * facts["kv_blocks"]
        assert facts["stats_lost"] is None
        assert facts["environment"]["TLLM_LOG_LEVEL"] == "info"
        assert "s3cret" not in str(facts)

    file = tmp_path / "logs" / "arm.block0.options.yaml"
    assert str(file) in facts["command"]
    assert file.read_text(encoding="utf-8").splitlines() == facts["options"]
    assert not processes_with(model.name)


@pytest.mark.parametrize("family", VERSIONS)
def test_an_obedient_engine_of_each_version_would_be_believed(family: str, tmp_path: Path) -> None:
    """What was asked for, what the server says and what its counters show agree."""
    asked = replace(settings(), runtime=installed(tmp_path, VERSIONS[family]))

    triples = verdicts(asked)

    proven = ("prefix_caching", "chunked_prefill", "batching", "speculative")
    assert {triples[toggle].verdict for toggle in proven} == {"verified"}
    assert triples["cuda_graphs"].verdict == "unverifiable"
    assert not [one for one in triples.values() if one.verdict == "contradicted"]
    assert (triples["overlap_scheduling"].effective is None) == (family == "1.1")


@pytest.mark.parametrize(
    ("toggles", "expected"),
    [
        (
            {"prefix_caching": "off", "batching": "static", "chunked_prefill": "off"},
            {
                "prefix_caching": "verified",
                "batching": "verified",
                "chunked_prefill": "unverifiable",
            },
        ),
        (
            {"batching": "none", "attention_backend": "FLASHINFER", "prefix_caching": "off"},
            {"batching": "verified", "prefix_caching": "verified"},
        ),
        (
            {"batching": "static", "speculative": NGRAM, "overlap_scheduling": "off"},
            {"batching": "unverifiable", "speculative": "verified"},
        ),
    ],
)
def test_each_value_shows_as_far_as_its_counters_go(
    toggles: dict[str, str | ToggleValue], expected: dict[str, str]
) -> None:
    """Nothing that was followed is called contradicted."""
    triples = verdicts(settings(**toggles))

    assert {toggle: triples[toggle].verdict for toggle in expected} == expected
    assert not [one for one in triples.values() if one.verdict == "contradicted"]


@pytest.mark.parametrize(
    ("value", "fault", "says"),
    [
        ("on", "deaf-to-on", "lies"),
        ("on", "deaf-to-on", "mute"),
        ("off", "deaf-to-off", "lies"),
    ],
)
def test_an_engine_that_ignores_an_option_is_contradicted(
    value: str, fault: str, says: str
) -> None:
    """Whether it admits it, says the opposite or nothing: its counters do, both ways."""
    triple = verdicts(settings(fault, says, prefix_caching=value))["prefix_caching"]

    assert triple.requested == value
    assert triple.verdict == "contradicted"
    assert (triple.effective == value) == (says == "lies")


@pytest.mark.parametrize("family", ["1.3", "main"])
def test_counters_know_what_the_cache_gave(family: str, tmp_path: Path) -> None:
    """Tokens of whole blocks that came again, whether the version counts blocks or tokens."""
    asked = replace(settings(), runtime=installed(tmp_path, VERSIONS[family]))
    with ADAPTER.start(asked) as endpoint:
        before = endpoint.counters()
        told = [complete(endpoint, SHARED).json()["usage"] for _ in range(2)]
        after = endpoint.counters()

    assert told[1]["prompt_tokens_details"]["cached_tokens"] == 672
    assert (after.cached_prompt_tokens or 0) - (before.cached_prompt_tokens or 0) == 672
    assert (after.prompt_tokens or 0) - (before.prompt_tokens or 0) == 1400
    assert (after.output_tokens is not None) == (family == "main")


def test_the_totals_hold_all_that_was_answered_before_they_were_asked_for() -> None:
    """Also when nobody read for long: what is asked is asked of the past, not of the last poll."""
    lazy = TensorRtLlmAdapter(poll_s=600.0)
    with lazy.start(settings()) as endpoint:
        before = endpoint.counters()
        for number in range(5):
            complete(endpoint, list(range(100 + number, 140 + number)), 3)
            steps = (endpoint.counters().steps or 0) - (before.steps or 0)
            assert steps == 3 * (number + 1)


def test_iterations_that_are_lost_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With records missing there are no sums of them; what each request told is still there."""
    monkeypatch.setattr(tensorrt_llm_records, "_SETTLE_S", 5.0)
    with ADAPTER.start(settings("loses")) as endpoint:
        complete(endpoint, SHARED, 60)
        seen = endpoint.counters()

        assert "never told" in endpoint.facts()["stats_lost"]
        assert seen.steps is seen.peak_running is None
        assert seen.cached_prompt_tokens == 0


def test_a_run_does_not_begin_while_requests_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to empty, but a request of before would count as one of the run."""
    monkeypatch.setattr(tensorrt_llm_records, "_SETTLE_S", 1.0)
    with ADAPTER.start(settings()) as endpoint, ThreadPoolExecutor(1) as pool:
        endpoint.reset()
        slow = pool.submit(complete, endpoint, SHARED, 1000)
        time.sleep(0.3)
        with pytest.raises(EngineError, match="requests in flight"):
            endpoint.reset()
        assert slow.result().status == 200


def test_fields_that_it_does_not_know_are_refused_and_none_is_sent() -> None:
    """One more field than it knows is a 400: what the target lists it takes."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    with ADAPTER.start(settings()) as endpoint:
        salted = complete(endpoint, [1, 2, 3], cache_salt="x")
        known = complete(
            endpoint, [1, 2, 3], seed=1, ignore_eos=True, stream=True, stream_options=usage
        )

    assert (salted.status, salted.json()["object"]) == (400, "error")
    assert known.status == 200
    last = [json.loads(line[6:]) for line in known.text.splitlines() if line[6:7] == "{"][-1]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)


def test_a_crash_in_mid_run_is_told_with_its_cause() -> None:
    """Whoever asks a dead engine gets an error that says how it died, and nothing is left."""
    asked = settings("crashes-at=2")
    with ADAPTER.start(asked) as endpoint:
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            complete(endpoint, SHARED)
        with pytest.raises(
            EngineError, match="tensorrt-llm ended in mid-run, with exit code 139"
        ) as caught:
            endpoint.counters()

    assert "ValueError: lost device" in caught.value.__notes__[0]
    assert not processes_with(asked.model)


def test_an_engine_that_does_not_start_says_why() -> None:
    """The cause with its line, not the last thing that fell over it."""
    with (
        pytest.raises(EngineError, match="with exit code 1: out of memory") as caught,
        ADAPTER.start(settings("dies-of=oom")),
    ):
        pass

    assert "torch.OutOfMemoryError" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("extra_args", "message", "line"),
    [
        (("--bogus", "1"), "with exit code 2: bad flag", "No such option: --bogus"),
        (
            ("--set", "kv_cache_config.bogus=1"),
            "with exit code 1: bad key",
            "kv_cache_config.bogus",
        ),
    ],
)
def test_what_the_author_adds_is_held_against_what_the_version_takes(
    extra_args: tuple[str, ...], message: str, line: str
) -> None:
    """A flag or a key that is none ends the start with its name."""
    with (
        pytest.raises(EngineError, match=message) as caught,
        ADAPTER.start(replace(settings(), extra_args=extra_args)),
    ):
        pass

    assert line in caught.value.__notes__[0]


def test_an_engine_that_never_becomes_ready_is_stopped() -> None:
    """A rank that crashed leaves a server that says 503 for ever: time ends it, not its exit."""
    asked = replace(settings("never-healthy"), start_timeout_s=5.0)
    with pytest.raises(EngineError, match="/health answers 503"), ADAPTER.start(asked):
        pass

    assert not processes_with(asked.model)


def test_stopping_leaves_no_process_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a worker in a session of its own, nor the one who read the records."""
    monkeypatch.setattr(server, "_RUNNING_GRACE_S", 0.1)
    asked = settings("ignores-sigterm", "orphan")

    with ADAPTER.start(asked) as endpoint:
        file = Path(endpoint.facts()["command"][-1])
        assert file.is_file()
        assert len(processes_with(asked.model)) >= 3
        assert READER in {thread.name for thread in threading.enumerate()}

    assert not processes_with(asked.model)
    assert READER not in {thread.name for thread in threading.enumerate()}
    assert not file.exists()  # without a log to lie beside, it was a passing one


def test_the_plan_shows_command_and_options_without_starting_anything(tmp_path: Path) -> None:
    """Program, model, flags and the author's own words; then the file, as YAML."""
    runtime = installed(tmp_path, "1.3.0rc3")
    asked = replace(settings(), runtime=runtime, extra_args=("--set", "print_iter_log=true"))

    line = ADAPTER.launch_line(asked)

    assert line[0] == f"{tmp_path}/bin/trtllm-serve"
    assert line[1:3] == ["serve", asked.model]
    assert line[line.index("--port") + 1] == "PORT"
    assert line[line.index("--extra_llm_api_options") + 1] == "OPTIONS.yaml"
    file = yaml.safe_load("\n".join(line[line.index("# OPTIONS.yaml:") + 1 :]))
    assert file["kv_cache_config"]["enable_block_reuse"] is True
    assert file["print_iter_log"] is True
    assert ADAPTER.version_of(asked) == "1.3.0rc3"
    assert not processes_with(asked.model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 1}, "set the toggle batching to none"),
        ({"model": "./nowhere"}, "there is no model folder ./nowhere"),
        ({"extra_args": ("--port", "1")}, "extra_args: --port cannot be set there"),
        ({"runtime": Runtime(path=Path("/nowhere/trtllm-serve"))}, "there is no program"),
    ],
)
def test_what_can_never_start_is_found_by_the_plan(changes: dict[str, Any], message: str) -> None:
    """Nothing is started to find out what the settings alone tell."""
    ADAPTER.check(settings())
    with pytest.raises(EngineError, match=message):
        ADAPTER.check(replace(settings(), **changes))


def test_a_program_that_is_nowhere_is_asked_for_by_the_engines_name() -> None:
    """The author is told what to write, which is not the program's name."""
    with pytest.raises(EngineError, match="no program trtllm-serve on PATH") as caught:
        ADAPTER.check(replace(settings(), runtime=None))

    assert "engine: tensorrt-llm" in caught.value.__notes__[0]


def test_what_is_dragged_along_has_its_reason() -> None:
    """The plan shows it as part of the effect."""
    asked = settings(speculative=NGRAM)

    assert ADAPTER.implied(asked) == {"overlap_scheduling": ToggleValue("off")}
    assert "without overlap" in ADAPTER.reasons(asked)["overlap_scheduling"]
