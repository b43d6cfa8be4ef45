"""Warming up until the engine has settled."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from known_runs import known_record
from repository import STAND_INS
from small_sweeps import swept

from harness.experiment.warm_up import WarmUp, of_given_length, rounds_until_settled
from harness.results.analysis import write_summary
from harness.results.store.records import RequestRecord
from harness.workloads import Conversation

SWEEP = """\
name: cold
model: stand-in
hardware: {{gpu: none, count: 1}}
engines:
  - engine: vllm
    runtime: {{command: ["{python}", "{program}", "cold={cold_s}"]}}
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 64, output_tokens: 50}}
load: [{{concurrency: 4, requests: 80}}]
blocks: 1
"""


def settled_after(*service_s: float) -> WarmUp:
    """Return the warm-up on an engine whose n-th round of four takes this long."""
    times = iter(service_s)

    def play(conversations: tuple[Conversation, ...]) -> Sequence[RequestRecord]:
        service_ms = next(times) * 1000
        return [known_record(i, [(service_ms, 1)]) for i, _ in enumerate(conversations)]

    four = tuple(Conversation(conversation_id=f"c{i}", turns=()) for i in range(4))
    return rounds_until_settled(itertools.repeat(four), play)


@pytest.mark.parametrize("late_s", [1, 5, 20])
def test_the_ramp_comes_from_a_warm_engine(late_s: float) -> None:
    """However late the first answers are, the ramp is the service time of the later ones."""
    found = settled_after(late_s, 0.4, 0.41)

    assert found == WarmUp(ramp_ns=410_000_000, round_s=(late_s, 0.4, 0.41), settled=True)
    assert found.note() is None


def test_an_engine_that_gets_faster_slowly_is_warmed_up_for_longer() -> None:
    """Each round within 20 % of the one before is the sign, not the number of rounds."""
    assert settled_after(8, 4, 2, 1, 0.9).round_s == (8, 4, 2, 1, 0.9)


def test_a_warm_up_has_an_end() -> None:
    """Eight rounds at most; what did not settle is said, with the times."""
    found = settled_after(*(2.0**-n for n in range(9)))

    assert (len(found.round_s), found.settled) == (8, False)
    assert "did not settle: its rounds took 1, 0.5, 0.25" in (found.note() or "")


def test_a_slow_engine_is_not_warmed_up_for_hours() -> None:
    """No round begins when ten minutes have passed."""
    assert settled_after(700, 300, 300).round_s == (700,)


def test_a_given_number_of_requests_is_sent_once() -> None:
    """`--warmup 8`: the ramp is that of the last request of each slot."""
    late = [known_record(i, [(20_000, 1)]) for i in range(4)]
    warm = [known_record(i + 4, [(20_100, 1)], sent_ms=20_000) for i in range(4)]
    eight = tuple(Conversation(conversation_id=f"c{i}", turns=()) for i in range(8))

    found = of_given_length(eight, 4, lambda _: [*warm, *late])

    assert found == WarmUp(ramp_ns=100_000_000, round_s=(20.1,), settled=None)
    assert of_given_length((), 4, lambda _: []) == WarmUp()


@pytest.mark.alone
@pytest.mark.parametrize("cold_s", [1, 3])
def test_a_cold_engine_is_measured_warm(tmp_path: Path, cold_s: float) -> None:
    """The first answers are late; the window is steady, and holds the speed of a warm engine.

    A stand-in of vLLM: its speed is no engine's.
    """
    program = STAND_INS / "stand_in_vllm.py"
    manifests = swept(tmp_path, SWEEP.format(python=sys.executable, program=program, cold_s=cold_s))
    summary = write_summary(tmp_path / "out").summary

    warm_up = manifests["baseline"]["warm_up"]
    assert warm_up["round_s"][0] > cold_s
    assert warm_up["ramp_ns"] < 0.5e9
    speeds = [run.metrics.output_tokens_per_s or 0 for run in summary.runs if run.metrics]
    assert min(speeds) > 600  # 4 × 50 tokens in 0.1 s are 2,000; the rest is for a busy machine
    assert {run.window.kind for run in summary.runs if run.window} == {"steady"}
