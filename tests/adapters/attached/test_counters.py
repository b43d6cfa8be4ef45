"""Counters of a server that is not ours, before and after a run: only what goes on is compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.adapters.attached import server as attach
from harness.adapters.attached.server import Attached
from harness.adapters.base import ServerCounters, Target
from harness.adapters.http_queries import HttpReply
from harness.experiment.counter_moves import counter_moves
from harness.results.metrics import from_counters
from harness.results.store import CounterMoves


def page(hits: tuple[float, float], queries: tuple[float, float], end: str = "_total") -> str:
    """Return the metrics of two engines behind one port."""
    lines = [
        f'vllm:prefix_cache_{what}{end}{{engine="{engine}",model_name="m"}} {value:e}'
        for what, values in (("hits", hits), ("queries", queries))
        for engine, value in enumerate(values)
    ]
    return "# TYPE x counter\n" + "\n".join(lines) + "\n"


BEFORE = page(hits=(50, 10), queries=(200, 100))


def rate(monkeypatch: pytest.MonkeyPatch, *pages: str | None) -> tuple[float | None, str]:
    """Return the hit rate between two scrapes, None: one without an answer; and what is noted."""
    left: Iterator[str | None] = iter(pages)

    def answer(_: str, path: str, **__: object) -> HttpReply:
        if path != "/metrics":
            return HttpReply(404, b"")
        text = next(left)
        if text is None:
            raise ConnectionRefusedError
        return HttpReply(200, text.encode())

    monkeypatch.setattr(attach, "query", answer)
    server = Attached(
        transport=Target(url="http://h", model="m", api="completions"),
        engine_version="1",
        engine_kind="real",
        max_model_len=None,
        waited_s=0.0,
    )
    before = server.counters()
    moved, _ = counter_moves(before, server.counters())
    counted = {
        name: getattr(moved, name)
        for name in ("prompt_tokens", "cached_prompt_tokens", "looked_up_prompt_tokens")
        if getattr(moved, name) is not None
    }
    return from_counters(CounterMoves(**counted))["prefix_hit_rate"], " ".join(server.notes)


def test_a_rate_is_of_the_run_and_of_all_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """(90 + 0) hits of (100 + 20) queries; of the server's whole life it were 150 of 420."""
    after = page(hits=(140, 10), queries=(300, 120))

    assert rate(monkeypatch, BEFORE, after) == (0.75, "")


def test_a_restart_gives_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that fell began again; the note says so."""
    found, note = rate(monkeypatch, BEFORE, page(hits=(5, 1), queries=(20, 10)))

    assert found is None
    assert "restarted" in note


def test_a_restart_of_one_engine_is_seen_though_the_sum_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engine 1 began again while engine 0 counted on by more."""
    found, note = rate(monkeypatch, BEFORE, page(hits=(900, 2), queries=(2000, 4)))

    assert found is None
    assert "engine" in note


def test_other_names_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before with `_total`, after without it: no rate, above all not 0."""
    found, note = rate(monkeypatch, BEFORE, page(hits=(140, 10), queries=(300, 120), end=""))

    assert found is None
    assert "not comparable" in note


@pytest.mark.parametrize("end", ["", "_total"])
def test_either_spelling_is_read(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Versions differ in the ending; one that keeps to its own is compared."""
    pages = [page((0, 0), (0, 0), end), page((30, 0), (40, 20), end)]

    assert rate(monkeypatch, *pages) == (0.5, "")


@pytest.mark.parametrize(
    ("hits", "prompts", "outputs"),
    [
        ("sglang:cached_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens"),
        ("trtllm_prompt_cached_tokens_total", "trtllm_prompt_tokens_total", "trtllm_generation"),
    ],
)
def test_other_engines_are_read_under_their_own_names(
    monkeypatch: pytest.MonkeyPatch, hits: str, prompts: str, outputs: str
) -> None:
    """60 of 80 prompt tokens were cached between the scrapes."""
    pages = [
        f'{hits}{{m="1"}} {20 + cached}\n{prompts}{{m="1"}} {100 + asked}\n{outputs} 5\n'
        for cached, asked in ((0, 0), (60, 80))
    ]

    assert rate(monkeypatch, *pages) == (0.75, "")


def test_a_page_that_loses_what_it_told_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's `/metrics` empties itself: only its page of series is read."""
    asked = []

    def answer(_: str, path: str, **__: object) -> HttpReply:
        asked.append(path)
        return HttpReply(200, b"trtllm_generation_tokens_total 7\n")

    monkeypatch.setattr(attach, "query", answer)
    server = Attached(
        transport=Target(url="http://h", model="m", api="completions"),
        engine_version="1",
        engine_kind="real",
        max_model_len=None,
        waited_s=0.0,
    )

    assert server.counters().output_tokens == 7
    assert asked == ["/prometheus/metrics"]


def test_totals_of_a_whole_life_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scrape before the run failed, the one after it says nothing of the run."""
    assert rate(monkeypatch, None, BEFORE)[0] is None


def test_a_counter_that_comes_up_in_the_run_began_at_0() -> None:
    """A server may show a series from its first event on."""
    moved, odd = counter_moves(
        ServerCounters(prompt_tokens=5), ServerCounters(prompt_tokens=9, preemptions=2)
    )

    assert (moved.prompt_tokens, moved.preemptions, odd) == (4, 2, ())


def test_totals_that_went_back_prove_nothing_and_that_is_said() -> None:
    """Minus over minus would look like a rate: the server was restarted in the run."""
    before = ServerCounters(prompt_tokens=90, cached_prompt_tokens=60, preemptions=0)

    moved, odd = counter_moves(before, ServerCounters(prompt_tokens=9, cached_prompt_tokens=6))

    assert moved == ServerCounters()
    assert "prompt_tokens, cached_prompt_tokens" in odd[0]


def test_one_counter_that_fell_spoils_all() -> None:
    """The others count from the restart: they may have grown past what they were."""
    told = from_counters(CounterMoves(prompt_tokens=-5, preemptions=3, drafted_tokens=4))

    assert set(told.values()) == {None}
