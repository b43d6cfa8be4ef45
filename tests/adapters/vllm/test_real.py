"""The adapter against a real vLLM on this machine's CPU, where one is named.

HARNESS_TEST_VLLM names its environment and HARNESS_TEST_MODEL a small model's folder;
`examples/cpu` makes both. About four minutes on two cores.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from repository import STAND_INS
from stand_in import processes_with, settings

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.http_queries import query
from harness.adapters.process.guard import birth, descendants
from harness.adapters.runtime import Runtime
from harness.adapters.vllm.adapter import VllmAdapter, VllmEndpoint
from harness.adapters.vllm.flags import serve_words
from harness.adapters.vllm.iteration_log import FLAG
from harness.experiment.evidence import Exercise, examine
from tests.adapters.vllm.test_flags import FLIPS

VENV = os.environ.get("HARNESS_TEST_VLLM", "")
MODEL = os.environ.get("HARNESS_TEST_MODEL", "")
ADAPTER = VllmAdapter()
SHM = Path("/dev/shm")  # noqa: S108  where shared memory lies
pytestmark = pytest.mark.skipif(
    not (VENV and MODEL), reason="HARNESS_TEST_VLLM and HARNESS_TEST_MODEL name no real vLLM"
)


def real_settings(folder: Path, **toggles: str | ToggleValue) -> EngineSettings:
    """Return settings of the CPU build that are ready soonest: eager, little room for KV."""
    asked = replace(
        settings(**toggles),
        model=MODEL,
        gpu="cpu",
        dtype="float32",
        runtime=Runtime(venv=Path(VENV)),
        extra_args=("--enforce-eager", "--kv-cache-memory-bytes", "256M", FLAG),
        env={"HF_HUB_OFFLINE": "1"},
        log_path=folder / "engine.log",
        start_timeout_s=300.0,
    )
    settled = replace(asked, toggles={**asked.toggles, **ADAPTER.implied(asked)})
    ADAPTER.check(settled)
    return settled


def complete(endpoint: VllmEndpoint, prompt: Sequence[int], tokens: int = 20) -> Any:
    question = {
        "model": endpoint.transport.model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = query(endpoint.transport.url, "/v1/completions", question, timeout_s=60.0)
    assert answer.status == 200, answer.text
    return answer.json()["usage"]


def load(endpoint: VllmEndpoint) -> ServerCounters:
    """Return how the counters moved over a long prompt sent twice and eight at once."""
    endpoint.reset()
    before = asdict(endpoint.counters())
    complete(endpoint, range(10, 1500))
    complete(endpoint, range(10, 1500))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: complete(endpoint, range(20 + n, 220 + n), 40), range(8)))
    after = asdict(endpoint.counters())
    moved = {name: n if n is None else n - (before[name] or 0) for name, n in after.items()}
    return ServerCounters(**moved)


def verdicts(asked: EngineSettings, endpoint: VllmEndpoint, seen: ServerCounters) -> dict[str, str]:
    exercise = Exercise(
        prefix_hit_ceiling=0.4,
        longest_prompt_tokens=1490,
        most_in_flight=8,
        kv_tokens=endpoint.facts()["kv_tokens"],
    )
    triples = examine(asked, endpoint.effective(), seen, exercise)
    return {toggle: triple.verdict for toggle, triple in triples.items()}


def checked(lines: list[tuple[str, list[str]]]) -> list[str | None]:
    """Return what vLLM's own code finds wrong with command lines, each at its stage."""
    done = subprocess.run(
        [f"{VENV}/bin/python", str(STAND_INS / "vllm_parser_check.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    found: list[str | None] = json.loads(done.stdout.partition("RESULT ")[2])
    return found


def words_of(asked: EngineSettings) -> list[str]:
    return serve_words(replace(asked, model=MODEL), 8000)[1:]


def test_every_command_line_is_taken_and_makes_a_configuration() -> None:
    """By vLLM's own parser, nonsense not; what values drag along is right: without it some fail."""
    own = replace(settings(), extra_args=("--enforce-eager", "-cc.mode=0"))
    good = [settings(), *(settings(**{toggle: value}) for toggle, value, _, _ in FLIPS), own]
    bad = [[MODEL, "--bogus"], [MODEL, "--kv-cache-dtype", "fp7"], [MODEL, "--port", "x"]]
    draft = ToggleValue("draft", (("draft", MODEL), ("tokens", 2)))
    needs_a_head = ("eagle", "eagle3")
    flips = [(t, v) for t, v, _, _ in FLIPS if v.kind not in (*needs_a_head, "draft")]
    arms = [settings(), *(settings(**{toggle: value}) for toggle, value in flips)]
    arms.append(settings(speculative=draft))
    settled = [replace(arm, toggles={**arm.toggles, **ADAPTER.implied(arm)}) for arm in arms]
    unsettled = settings(speculative=ToggleValue("ngram"))

    told = checked(
        [("parse", words_of(asked)) for asked in good]
        + [("configure", words_of(arm)) for arm in settled]
        + [("parse", words) for words in bad]
        + [("configure", words_of(unsettled))]
    )

    taken = len(good) + len(settled)
    assert told[:taken] == [None] * taken
    assert all(told[taken:])
    assert "async scheduling" in str(told[-1])


@pytest.fixture(scope="module")
def shared_memory() -> Iterator[None]:
    """Hold that nothing of an engine's shared memory is left in the end: it is RAM."""
    before = set(SHM.iterdir())
    yield
    assert set(SHM.iterdir()) <= before


@pytest.mark.usefixtures("shared_memory")
def test_the_baseline_runs_is_proven_and_dies_with_a_reason(tmp_path: Path) -> None:
    """Words and counters agree; hits are whole blocks of 128; a reset is cold; then its core dies.

    It is killed while it streams: an error that tells, and nothing left.
    """
    asked = real_settings(tmp_path)
    with ADAPTER.start(asked) as endpoint:
        processes = endpoint._server.processes
        pids = processes.pids()
        seen = load(endpoint)
        told = verdicts(asked, endpoint, seen)
        effective = endpoint.effective()
        endpoint.reset()
        cold = complete(endpoint, range(10, 1500), 1)["prompt_tokens_details"]["cached_tokens"]
        warm = complete(endpoint, range(10, 1500), 1)["prompt_tokens_details"]["cached_tokens"]
        stream = open_stream(endpoint)
        (core,) = set(processes_with("VLLM::EngineCore")) & pids
        os.kill(core, signal.SIGKILL)
        while processes.exit_code() is None:  # its server notices within seconds
            time.sleep(0.1)
        with pytest.raises(EngineError, match="vllm ended in mid-run, with exit code") as caught:
            endpoint.counters()
        stream.close()

    assert told["prefix_caching"] == told["chunked_prefill"] == told["batching"] == "verified"
    assert told["speculative"] == "verified"
    assert "contradicted" not in told.values()
    assert effective["block_size"] == "128"
    assert (effective["cuda_graphs"], effective["overlap_scheduling"]) == ("off", "off")
    assert endpoint.engine_kind == "real"
    assert endpoint.transport.vocabulary is not None
    assert (cold, warm) == (0, 1490 // 128 * 128)
    assert "EngineDead" in "".join(caught.value.__notes__)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.usefixtures("shared_memory")
def test_the_opposite_of_the_baseline_runs_and_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache, no chunks, one at a time, drafts; a stream in flight does not keep it alive.

    With one open vLLM may wait for its client for ever; the grace is all that it gets.
    """
    monkeypatch.setattr("harness.adapters.process.server._RUNNING_GRACE_S", 3.0)
    ngram = ToggleValue("ngram", (("tokens", 3),))
    asked = real_settings(
        tmp_path,
        prefix_caching="off",
        chunked_prefill="off",
        batching="none",
        speculative=ngram,
        block_size="32",
    )
    with ADAPTER.start(asked) as endpoint:
        pids = endpoint._server.processes.pids()
        seen = load(endpoint)
        told = verdicts(asked, endpoint, seen)
        effective = endpoint.effective()
        stream = open_stream(endpoint)
        started_s = time.monotonic()

    assert time.monotonic() - started_s < 10
    stream.close()
    assert told["prefix_caching"] == told["batching"] == told["speculative"] == "verified"
    assert (told["chunked_prefill"], seen.partial_prefill_steps) == ("verified", 0)
    assert "contradicted" not in told.values()
    assert effective["speculative"] == "ngram(tokens=3)"
    assert effective["chunked_prefill"] == "off"
    assert effective["block_size"] == "32"
    assert seen.looked_up_prompt_tokens == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def open_stream(endpoint: VllmEndpoint) -> http.client.HTTPConnection:
    """Return the connection of a long answer of which something has come."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", urlsplit(endpoint.transport.url).port or 0, timeout=30
    )
    question = {
        "model": MODEL,
        "prompt": "a",
        "max_tokens": 1900,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(question), headers)
    connection.getresponse().readline()
    return connection


@pytest.mark.parametrize(
    ("changes", "kind", "line"),
    [
        ({"extra_args": ("--bogus", "1")}, "code 2: bad flag", "unrecognized arguments: --bogus"),
        (
            {"extra_args": ("--enforce-eager", "--kv-cache-memory-bytes", "500G")},
            "code 1: out of memory",
            "requested memory for kv (500.0 GiB)",
        ),
        ({"max_model_len": 99_999}, "code 1: invalid configuration", "max_model_len (99999)"),
        ({"model": "some-org/some-model"}, "code 1: model not found", "cached snapshot folder"),
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


@pytest.mark.usefixtures("shared_memory")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_harness_that_is_ended_while_vllm_starts(
    kind: signal.Signals, tmp_path: Path
) -> None:
    """In this phase vLLM itself hangs on SIGTERM and leaves its core an orphan."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from tests.adapters.vllm.test_real import ADAPTER, real_settings\n"
        f"with ADAPTER.start(real_settings(Path({str(tmp_path)!r}))): pass\n"
    )
    harness = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    log = tmp_path / "engine.log"
    watch = threading.Timer(120, harness.kill)
    watch.start()
    while harness.poll() is None and "Initializing a V1 LLM engine" not in text_of(log):
        time.sleep(0.1)
    births = {pid: birth(pid) for pid in descendants(harness.pid)}
    assert len(births) >= 4  # guard, server, resource tracker, core

    harness.send_signal(kind)
    harness.wait(30)
    watch.cancel()

    deadline_s = time.monotonic() + 10
    while any(birth(pid) == born for pid, born in births.items()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def text_of(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
