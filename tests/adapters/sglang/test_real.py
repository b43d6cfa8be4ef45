"""The adapter against a real SGLang on this machine's CPU, where one is named.

HARNESS_TEST_SGLANG names its environment and HARNESS_TEST_MODEL a small model's folder;
`examples/cpu` makes both. About three minutes on two cores.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from repository import STAND_INS
from sglang_settings import settings
from stand_in import processes_with

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.http_queries import query
from harness.adapters.runtime import Runtime
from harness.adapters.sglang.adapter import SglangAdapter, SglangEndpoint
from harness.adapters.sglang.flags import SglangBuild, serve_words
from harness.adapters.sglang.versions import release_of
from harness.experiment.evidence import Exercise, examine
from tests.adapters.sglang.test_flags import FLIPS

VENV = os.environ.get("HARNESS_TEST_SGLANG", "")
MODEL = os.environ.get("HARNESS_TEST_MODEL", "")
ADAPTER = SglangAdapter()
PLAIN = Runtime(venv=Path(VENV or "nowhere"))
SPECULATING = Runtime(path=Path(VENV or "nowhere") / "bin" / "sglang-cpu")
NGRAM = ToggleValue("ngram", (("tokens", 3),))
LONG = list(range(10, 1500))
ANSWERS: list[str] = []  # of the baseline, where it ran in this session
pytestmark = pytest.mark.skipif(
    not (VENV and MODEL), reason="HARNESS_TEST_SGLANG and HARNESS_TEST_MODEL name no real SGLang"
)


def real_settings(
    folder: Path, runtime: Runtime = PLAIN, **toggles: str | ToggleValue
) -> EngineSettings:
    """Return settings of a server on the CPU with little room for KV, which is ready soonest."""
    asked = replace(
        settings(**toggles),
        model=MODEL,
        gpu="cpu",
        dtype="float32",
        runtime=runtime,
        extra_args=("--max-total-tokens", "32k"),
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},  # a small model, on a shared machine
        log_path=folder / "engine.log",
        start_timeout_s=300.0,
    )
    settled = replace(asked, toggles={**asked.toggles, **ADAPTER.implied(asked)})
    ADAPTER.check(settled)
    return settled


def complete(endpoint: SglangEndpoint, prompt: Sequence[int], tokens: int = 20) -> Any:
    question = {
        "model": endpoint.transport.model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = query(endpoint.transport.url, "/v1/completions", question, timeout_s=120.0)
    assert answer.status == 200, answer.text
    return answer.json()


def load(endpoint: SglangEndpoint) -> tuple[ServerCounters, list[str]]:
    """Return what a long prompt sent twice and eight at once move in the counters; the answers."""
    endpoint.reset()
    before = asdict(endpoint.counters())
    answers = [complete(endpoint, LONG), complete(endpoint, LONG)]
    with ThreadPoolExecutor(8) as pool:
        prompts = [range(20 + 300 * n, 220 + 300 * n) for n in range(8)]
        answers += pool.map(lambda prompt: complete(endpoint, prompt, 40), prompts)
    after = asdict(endpoint.counters())
    moved = {name: n if n is None else n - (before[name] or 0) for name, n in after.items()}
    return ServerCounters(**moved), [answer["choices"][0]["text"] for answer in answers]


def verdicts(
    asked: EngineSettings, endpoint: SglangEndpoint, seen: ServerCounters
) -> dict[str, str]:
    exercise = Exercise(
        prefix_hit_ceiling=0.4,
        longest_prompt_tokens=len(LONG),
        most_in_flight=8,
        kv_tokens=endpoint.facts()["kv_tokens"],
    )
    triples = examine(asked, endpoint.effective(), seen, exercise)
    return {toggle: triple.verdict for toggle, triple in triples.items()}


def cached(answer: Any) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def open_stream(endpoint: SglangEndpoint) -> http.client.HTTPConnection:
    """Return the connection of a long answer of which something has come."""
    port = urlsplit(endpoint.transport.url).port or 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    question = {"model": MODEL, "prompt": "a", "max_tokens": 1900, "stream": True}
    body = json.dumps({**question, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    connection.getresponse().readline()
    return connection


def checked(lines: list[tuple[str, list[str]]]) -> list[str | None]:
    """Return what SGLang's own code finds wrong with command lines, each at its stage."""
    done = subprocess.run(
        [f"{VENV}/bin/python", str(STAND_INS / "sglang_parser_check.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"},
    )
    found: list[str | None] = json.loads(done.stdout.partition("RESULT ")[2])
    return found


def words_of(asked: EngineSettings, *, cpu: bool = False) -> list[str]:
    release = release_of(ADAPTER.version_of(replace(asked, runtime=PLAIN)))
    build = SglangBuild(release=release, cpu=cpu)
    return serve_words(replace(asked, model=MODEL), 8000, build)


def test_every_command_line_is_taken_and_what_the_plan_refuses_is_refused() -> None:
    """By SGLang's own parser, and where settings do not go together by what comes after it."""
    own = replace(settings(), extra_args=("--schedule-policy", "lpm"))
    good = [settings(), *(settings(**{toggle: value}) for toggle, value, _ in FLIPS), own]
    together = [settings(cuda_graphs="off"), settings(cuda_graphs="off", speculative=NGRAM)]
    refused = [settings(block_size="64", speculative=NGRAM)]
    refused += [replace(settings(), max_model_len=99_999)]
    model = ["--model-path", MODEL]
    bad = [[*model, "--bogus"], [*model, "--kv-cache-dtype", "fp8"], [*model, "--port", "x"]]

    told = checked(
        [("parse", words_of(asked)) for asked in good]
        + [("resolve", words_of(asked, cpu=True)) for asked in [*together, *refused]]
        + [("parse", words) for words in bad]
    )

    taken = len(good) + len(together)
    assert told[:taken] == [None] * taken
    assert "only supported for the 'flashinfer' backend" in str(told[taken])
    assert "greater than the derived context_length" in str(told[taken + 1])
    assert all(told[taken:])


def test_the_baseline_runs_is_proven_and_dies_with_a_reason(tmp_path: Path) -> None:
    """Words and counters agree; hits are single tokens; a reset is cold; then its core is lost."""
    asked = real_settings(tmp_path)
    with ADAPTER.start(asked) as endpoint:
        processes = endpoint._server.processes
        pids = processes.pids()
        seen, answers = load(endpoint)
        told = verdicts(asked, endpoint, seen)
        effective = endpoint.effective()
        endpoint.reset()
        cold, warm = (cached(complete(endpoint, LONG, 1)) for _ in range(2))
        stream = open_stream(endpoint)
        (core,) = set(processes_with("sglang::scheduler")) & pids
        os.kill(core, signal.SIGKILL)
        while processes.exit_code() is None:  # its server answers for five seconds more
            time.sleep(0.1)
        with pytest.raises(EngineError, match="sglang ended in mid-run, with") as caught:
            endpoint.counters()
        stream.close()

    ANSWERS.extend(answers)
    assert told["prefix_caching"] == told["chunked_prefill"] == told["batching"] == "verified"
    assert told["speculative"] == "verified"
    assert told["cuda_graphs"] == "verified"
    assert "contradicted" not in told.values()
    assert (effective["cuda_graphs"], effective["overlap_scheduling"]) == ("off", "on")
    assert (effective["attention_backend"], effective["block_size"]) == ("torch_native", "1")
    assert seen.cached_prompt_tokens == len(LONG) - 1
    assert (seen.partial_prefill_steps or 0) >= 2  # 1490 tokens in chunks of 512
    assert endpoint.engine_kind == "real"
    assert endpoint.transport.vocabulary is not None
    assert (cold, warm) == (0, len(LONG) - 1)
    assert "worker died" in str(caught.value)
    assert "scheduler_0" in caught.value.__notes__[0]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_opposite_of_the_baseline_runs_and_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache, no chunks, one at a time, drafts; a stream in flight does not keep it alive."""
    monkeypatch.setattr("harness.adapters.process.server._RUNNING_GRACE_S", 3.0)
    opposite = {"prefix_caching": "off", "chunked_prefill": "off", "batching": "none"}
    asked = real_settings(tmp_path, SPECULATING, **opposite, speculative=NGRAM)
    with ADAPTER.start(asked) as endpoint:
        pids = endpoint._server.processes.pids()
        seen, answers = load(endpoint)
        told = verdicts(asked, endpoint, seen)
        effective, facts = endpoint.effective(), endpoint.facts()
        stream = open_stream(endpoint)
        started_s = time.monotonic()

    assert time.monotonic() - started_s < 15
    stream.close()
    verified = ("prefix_caching", "chunked_prefill", "batching", "speculative")
    assert {toggle: told[toggle] for toggle in verified} == dict.fromkeys(verified, "verified")
    assert "contradicted" not in told.values()
    assert effective["speculative"] == "ngram(tokens=3)"
    assert effective["overlap_scheduling"] == "off"
    assert effective["attention_backend"] == "intel_amx"
    assert seen.cached_prompt_tokens == seen.partial_prefill_steps == 0
    assert seen.steps == seen.verify_steps == seen.sequence_steps
    assert seen.drafted_tokens == 3 * (seen.verify_steps or 0)
    assert 0 < (seen.accepted_tokens or 0) <= (seen.drafted_tokens or 0)
    assert seen.output_tokens == 2 * 20 + 8 * 40
    assert not ANSWERS or answers == ANSWERS  # drafts and attention of ours change no answer
    assert "artefact" in facts["assumptions"][1]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("changes", "kind", "line"),
    [
        ({"extra_args": ("--bogus", "1")}, "code 2: bad flag", "unrecognized arguments: --bogus"),
        ({"max_model_len": 99_999}, "code 1: invalid configuration", "context_length (99999)"),
    ],
)
def test_real_failures_are_told_apart(
    changes: dict[str, Any], kind: str, line: str, tmp_path: Path
) -> None:
    """Kind and line come from the real engine's own words, well before the time limit."""
    asked = replace(real_settings(tmp_path), **changes)

    with pytest.raises(EngineError, match=kind) as caught, ADAPTER.start(asked):
        pass

    assert line in caught.value.__notes__[0]
