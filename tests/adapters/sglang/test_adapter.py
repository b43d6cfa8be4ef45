"""The SGLang adapter against a stand-in that takes SGLang's flags and counts as SGLang does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sglang_settings import NEWEST, SCRIPT, installed, settings
from stand_in import processes_with

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.http_queries import query
from harness.adapters.process import server
from harness.adapters.runtime import Runtime
from harness.adapters.sglang import adapter as sglang
from harness.adapters.sglang.adapter import SglangAdapter, SglangEndpoint
from harness.experiment.evidence import Exercise, Triple, examine

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

ADAPTER = SglangAdapter()
SHARED = list(range(1000, 1700))  # a prefix longer than a chunk of 512
NGRAM = ToggleValue("ngram", (("tokens", 4),))


def complete(endpoint: SglangEndpoint, prompt: list[int], tokens: int = 4) -> Any:
    question = {"model": endpoint.transport.model, "prompt": prompt, "max_tokens": tokens}
    return query(endpoint.transport.url, "/v1/completions", question, timeout_s=20.0).json()


def moves(endpoint: SglangEndpoint) -> ServerCounters:
    """Return what eight requests that share a prefix move, from a cold cache."""
    endpoint.reset()
    before = asdict(endpoint.counters())
    prompts = [[*SHARED, *range(number, number + 20)] for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda prompt: complete(endpoint, prompt, 20), prompts))
    after = asdict(endpoint.counters())
    moved = {name: n if n is None else n - (before[name] or 0) for name, n in after.items()}
    return ServerCounters(**moved)


def verdicts(asked: EngineSettings) -> Mapping[str, Triple]:
    """Return the evidence of those eight requests."""
    with ADAPTER.start(asked) as endpoint:
        seen = moves(endpoint)
        exercise = Exercise(
            prefix_hit_ceiling=0.8,
            longest_prompt_tokens=len(SHARED) + 20,
            most_in_flight=8,
            kv_tokens=endpoint.facts()["kv_tokens"],
        )
        return examine(asked, endpoint.effective(), seen, exercise)


def test_a_started_engine_says_what_it_is() -> None:
    """Version, kind, where to ask, sizes, and the command that started it."""
    asked = replace(settings(), env={"SGLANG_LOG_MS": "1", "SGLANG_KEY": "s3cret"})
    with ADAPTER.start(asked) as endpoint:
        facts = endpoint.facts()
        assert endpoint.transport.url.startswith("http://127.0.0.1:")
        assert endpoint.transport.model == asked.model
        assert "cache_salt" not in endpoint.transport.fields
        assert "continuous_usage_stats" in endpoint.transport.fields
        assert (endpoint.engine_version, endpoint.engine_kind) == (NEWEST, "stand-in")
        assert (facts["kv_tokens"], facts["block_size"], facts["running_limit"]) == (128_000, 1, 8)
        assert facts["command"][3:5] == ["--model-path", asked.model]
        assert facts["environment"]["SGLANG_LOG_MS"] == "1"
        assert "SGLANG_USE_CPU_ENGINE" not in facts["environment"]
        assert "s3cret" not in str(facts)
        assert facts["assumptions"] == []

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
                "cuda_graphs": "verified",
                "overlap_scheduling": "unverifiable",
            },
        ),
        ({"prefix_caching": "off"}, {"prefix_caching": "verified"}),
        ({"chunked_prefill": "off"}, {"chunked_prefill": "verified"}),
        ({"batching": "none"}, {"batching": "verified"}),
        ({"cuda_graphs": "off"}, {"cuda_graphs": "verified"}),
        ({"speculative": NGRAM}, {"speculative": "verified", "batching": "verified"}),
    ],
)
def test_an_obedient_engine_is_believed(
    toggles: dict[str, str | ToggleValue], expected: dict[str, str]
) -> None:
    """What was asked for, what the server says and what its counters show agree."""
    triples = verdicts(settings(**toggles))

    assert {toggle: triples[toggle].verdict for toggle in expected} == expected
    assert all(triple.verdict != "contradicted" for triple in triples.values())


@pytest.mark.parametrize("says", ["-", "lies"])
@pytest.mark.parametrize(
    ("toggle", "value", "fault"),
    [
        ("prefix_caching", "on", "deaf-to=cache"),
        ("prefix_caching", "off", "deaf-to=cache"),
        ("chunked_prefill", "off", "deaf-to=chunks"),
        ("speculative", "off", "deaf-to=drafts"),
    ],
)
def test_an_engine_that_ignores_the_flag_voids_the_run(
    toggle: str, value: str, fault: str, says: str
) -> None:
    """Whether it admits it or only its counters do."""
    triple = verdicts(settings(fault, says, **{toggle: value}))[toggle]

    assert triple.requested == value
    assert triple.verdict == "contradicted"
    assert (triple.effective == value) == (says == "lies")


def test_drafts_that_are_admitted_not_to_be_made_void_the_run() -> None:
    """Asked for, taken, not done: the server's own word says so."""
    triple = verdicts(settings("deaf-to=drafts", speculative=NGRAM))["speculative"]

    assert (triple.effective, triple.verdict) == ("off", "contradicted")


def test_a_version_that_counts_no_verify_steps_proves_no_speculation() -> None:
    """That a series is not there is no 0 where the version never had it."""
    with ADAPTER.start(settings("version=0.5.10", "old")) as endpoint:
        seen = endpoint.counters()

    assert endpoint.engine_version == "0.5.10"
    assert seen.verify_steps is seen.drafted_tokens is None
    assert seen.partial_prefill_steps == 0


def test_what_drafts_brought_is_worked_out_from_the_answers() -> None:
    """Of 20 tokens one is the prefill's and one of each step is no draft: the rest stood."""
    with ADAPTER.start(settings(speculative=NGRAM)) as endpoint:
        seen = moves(endpoint)
        said = endpoint.facts()["assumptions"]

    assert seen.verify_steps
    assert seen.accepted_tokens == 8 * 20 - 8 - seen.verify_steps
    assert seen.drafted_tokens == 4 * seen.verify_steps
    assert seen.sequence_steps == seen.verify_steps
    assert "each verify step counts as 4 drafted tokens" in said[0]


def test_a_reset_waits_for_what_is_in_flight() -> None:
    """A probe of /health is a request too: SGLang then flushes nothing, and is asked again."""
    with ADAPTER.start(settings("busy=2")) as endpoint:
        complete(endpoint, SHARED)
        warm = complete(endpoint, SHARED)["usage"]["prompt_tokens_details"]["cached_tokens"]
        endpoint.reset()
        cold = complete(endpoint, SHARED)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert (warm, cold) == (len(SHARED) - 1, 0)


def test_a_reset_that_did_not_work_is_no_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that should be cold is not measured warm."""
    monkeypatch.setattr(sglang, "_RESET_S", 0.3)
    with (
        ADAPTER.start(settings("busy=99")) as endpoint,
        pytest.raises(EngineError, match="did not flush its cache: are requests still in flight"),
    ):
        endpoint.reset()


@pytest.mark.parametrize(
    ("death", "told"),
    [
        ("oom", "with signal SIGKILL: out of memory"),
        ("pool", "with signal SIGKILL: out of memory"),
        ("model", "with signal SIGKILL: model not found"),
        ("amx", "with signal SIGKILL: not on this hardware"),
        ("worker", "with signal SIGKILL: worker died"),
    ],
)
def test_an_engine_that_dies_while_starting_says_why(death: str, told: str) -> None:
    """It kills itself with all its children: the signal says nothing, its log does."""
    asked = settings(f"dies-of={death}")

    with pytest.raises(EngineError, match=f"sglang ended while starting, {told}"):
        ADAPTER.start(asked).__enter__()
    assert not processes_with(asked.model)


def test_a_crash_in_mid_run_is_told_with_its_cause() -> None:
    """Whoever asks a dead engine gets an error that says how it died, and nothing is left."""
    asked = settings("crashes-at=2")
    with ADAPTER.start(asked) as endpoint:
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            complete(endpoint, SHARED)
        with pytest.raises(EngineError, match="sglang ended in mid-run, with exit code 139"):
            endpoint.counters()

    assert not processes_with(asked.model)


def test_an_engine_that_never_ends_its_drain_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM has no limit of its own: the grace is, and a hidden worker goes too."""
    monkeypatch.setattr(server, "_RUNNING_GRACE_S", 0.1)
    asked = settings("ignores-sigterm", "orphan")

    with ADAPTER.start(asked):
        assert len(processes_with(asked.model)) >= 3

    assert not processes_with(asked.model)


def test_passing_files_of_an_engine_go_with_it() -> None:
    """Its sockets and counters lie in a folder that is removed; what torch compiled stays."""
    with ADAPTER.start(settings()) as endpoint:
        env = endpoint._server.env
        folder = Path(env["TMPDIR"])
        assert folder.is_dir()
        assert env["PROMETHEUS_MULTIPROC_DIR"] == env["TMPDIR"]
        assert not Path(env["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(folder)

    assert not folder.exists()


def test_the_plan_shows_the_command_without_starting_anything() -> None:
    """Program, model, flags and the author's own words; the port is not known yet."""
    asked = replace(settings(), extra_args=("--schedule-policy", "lpm"))

    line = ADAPTER.launch_line(asked)

    assert line[:2] == [sys.executable, str(SCRIPT)]
    assert line[3:5] == ["--model-path", asked.model]
    assert line[line.index("--port") + 1] == "PORT"
    assert line[-2:] == ["--schedule-policy", "lpm"]
    assert not processes_with(asked.model)


def test_an_environment_runs_its_own_python_with_sglangs_module(tmp_path: Path) -> None:
    """The version is read from its metadata; without SGLang in it the plan says so."""
    asked = replace(settings(), runtime=Runtime(venv=installed(tmp_path / "a")))
    empty = replace(settings(), runtime=Runtime(venv=installed(tmp_path / "b", None)))

    line = ADAPTER.launch_line(asked)

    assert line[:3] == [str(tmp_path / "a/bin/python"), "-m", "sglang.launch_server"]
    assert ADAPTER.version_of(asked) == NEWEST
    with pytest.raises(EngineError, match="SGLang is not installed in the environment"):
        ADAPTER.version_of(empty)


def test_a_program_is_run_as_it_is_and_sglangs_own_is_told_to_serve(tmp_path: Path) -> None:
    """`sglang` has several commands; any other program takes the flags at once."""
    folder = installed(tmp_path)
    own = replace(settings(), runtime=Runtime(path=folder / "bin" / "sglang"))
    other = replace(settings(), runtime=Runtime(path=folder / "bin" / "python"))

    assert ADAPTER.launch_line(own)[:3] == [str(folder / "bin/sglang"), "serve", "--model-path"]
    assert ADAPTER.launch_line(other)[1] == "--model-path"


def test_without_a_runtime_the_program_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is what counts: the Python beside it is started."""
    folder = installed(tmp_path)
    monkeypatch.setenv("PATH", str(folder / "bin"))

    line = ADAPTER.launch_line(replace(settings(), runtime=None))

    assert line[:2] == [str(folder / "bin" / "python"), "-m"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="there is no program sglang on PATH"):
        ADAPTER.check(replace(settings(), runtime=None))


def test_a_cpu_drags_along_what_it_cannot_do() -> None:
    """No CUDA graphs; speculation goes without overlap there, and says why."""
    on_cpu = replace(settings(), gpu="cpu")
    drafting = replace(settings(speculative=NGRAM), gpu="cpu")

    assert set(ADAPTER.implied(on_cpu)) == {"cuda_graphs"}
    assert set(ADAPTER.implied(drafting)) == {"cuda_graphs", "overlap_scheduling"}
    assert "without overlap" in ADAPTER.reasons(drafting)["overlap_scheduling"]
    ADAPTER.check(replace(drafting, toggles={**drafting.toggles, **ADAPTER.implied(drafting)}))
    assert not ADAPTER.implied(settings(speculative=NGRAM))


def test_plain_sglang_does_not_speculate_on_a_cpu_without_amx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start, and end at its first draft; a launcher of the author may do better."""
    processor = tmp_path / "cpuinfo"
    monkeypatch.setattr(sglang, "_PROCESSOR", processor)
    drafting = replace(settings(speculative=NGRAM), gpu="cpu")
    drafting = replace(drafting, toggles={**drafting.toggles, **ADAPTER.implied(drafting)})
    plain = replace(drafting, runtime=Runtime(venv=installed(tmp_path / "venv")))

    processor.write_text("flags: avx2")
    with pytest.raises(EngineError, match=r"speculative: .* would end the server at its first"):
        ADAPTER.check(plain)
    ADAPTER.check(drafting)
    processor.write_text("flags: avx2 amx_tile amx_int8")
    ADAPTER.check(plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 1}, "set the toggle batching to none"),
        ({"model": "./nowhere"}, "there is no model folder ./nowhere"),
        ({"extra_args": ("--port", "1")}, "extra_args: --port cannot be set there"),
        ({"runtime": Runtime(path=Path("/nowhere/sglang"))}, "runtime.path: there is no program"),
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


def test_a_context_that_the_model_does_not_know_is_found_by_the_plan(tmp_path: Path) -> None:
    """The engine would say so after a minute; its own variable that allows it is heeded."""
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024}')
    asked = replace(settings(), model=str(tmp_path))

    with pytest.raises(EngineError, match=r"max_model_len 2048 is more than the 1024 tokens"):
        ADAPTER.check(asked)
    ADAPTER.check(replace(asked, max_model_len=1024))
    ADAPTER.check(replace(asked, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}))
