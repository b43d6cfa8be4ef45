"""Replicas behind one address: their counters are added up where their addresses are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from command_line import harness
from sweep_files import problems, write

from harness.adapters import EngineError
from harness.adapters.attached import server as attached
from harness.adapters.attached.server import Attached
from harness.adapters.base import Target
from harness.adapters.http_queries import Access, HttpReply
from harness.experiment.counter_moves import counter_moves
from harness.sweep_file import load_sweep

VLLM = 'vllm:prompt_tokens_total{{model_name="m"}} {0}.0\nvllm:generation_tokens_total {1}.0\n'
SGLANG = "sglang:prompt_tokens_total {0}.0\nsglang:generation_tokens_total {1}.0\n"
TARGET = Target(url="http://gate", model="m", headers={"Authorization": "Bearer s3cret"})


def answers(pages: Mapping[str, Callable[[], str]]) -> Callable[..., HttpReply]:
    """Return a `query` that answers pages of metrics, by address, and never sees the key there."""

    def query(base: str, path: str, *, access: Access, **_: object) -> HttpReply:
        assert dict(access.headers) == {}
        if path != "/metrics" or base not in pages:
            return HttpReply(404, b"")
        return HttpReply(200, pages[base]().encode())

    return query


def server(*replicas: str) -> Attached:
    return Attached(
        transport=TARGET,
        engine_version="1",
        engine_kind="real",
        max_model_len=None,
        waited_s=0.0,
        metrics_urls=replicas,
    )


@pytest.mark.parametrize(
    ("form", "replicas"),
    [
        (VLLM, ("http://a:8000", "http://b:8000")),
        (SGLANG, ("http://a:8000/metrics", "http://b:8000/", "http://c")),
        (VLLM, ("http://a:8000",)),
    ],
)
def test_the_counters_of_all_replicas_are_added_up(
    monkeypatch: pytest.MonkeyPatch, form: str, replicas: tuple[str, ...]
) -> None:
    """Each moved by 100 prompt and 10 output tokens from totals of its own; labels may be equal."""
    moved = {"http://a:8000": 0, "http://b:8000": 0, "http://c": 0}
    starts = {base: 1000 * (number + 1) for number, base in enumerate(moved)}

    def page(base: str) -> Callable[[], str]:
        return lambda: form.format(starts[base] + moved[base], 50 + moved[base] // 10)

    monkeypatch.setattr(attached, "query", answers({base: page(base) for base in moved}))
    endpoint = server(*replicas)
    before = endpoint.counters()
    for base in moved:
        moved[base] += 100
    moves, _ = counter_moves(before, endpoint.counters())

    assert moves.prompt_tokens == 100 * len(replicas)
    assert moves.output_tokens == 10 * len(replicas)
    assert endpoint.notes == ()


def test_a_replica_that_is_gone_or_begins_again_takes_all_counts_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum without one of them would be of a part of the requests."""
    pages = {"http://a": lambda: VLLM.format(100, 10), "http://b": lambda: VLLM.format(200, 20)}
    monkeypatch.setattr(attached, "query", answers(pages))
    endpoint = server("http://a", "http://b")
    endpoint.counters()
    pages["http://b"] = lambda: VLLM.format(5, 1)

    assert endpoint.counters().prompt_tokens is None
    assert "http://b: vllm:" in endpoint.notes[0]


def test_a_replica_without_metrics_is_refused_before_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names its address, and what to name."""
    monkeypatch.setattr(attached, "query", answers({"http://a": lambda: VLLM.format(1, 1)}))

    attached._check_replica("http://a", TARGET)
    for url in ("http://b", "http://a:1", "no address"):
        with pytest.raises(EngineError, match=url):
            attached._check_replica(url, TARGET)


def test_a_sweep_names_replicas_of_the_engine_url_only(tmp_path: Path) -> None:
    """A list of addresses; an engine that is started here has no replicas."""
    replicas = "metrics_urls: ['http://a:8000', 'http://b:8000']"
    path = write(tmp_path, engines=f"[{{engine: url, url: 'http://gate', {replicas}}}]")
    spec = load_sweep(path, engines=("url",), environment={})
    started = problems(tmp_path, engines=f"[{{engine: embedded, {replicas}}}]")
    empty = write(tmp_path, engines="[{engine: url, url: 'http://gate', metrics_urls: []}]")

    assert spec.engines[0].metrics_urls == ("http://a:8000", "http://b:8000")
    assert "leave out metrics_urls" in started[0]
    with pytest.raises(Exception, match="metrics_urls"):
        load_sweep(empty, engines=("url",), environment={})


def test_a_load_takes_the_option_once_for_each_replica() -> None:
    """The help names it."""
    assert "--metrics-url URL" in harness("load", "--help").stdout
