"""The cache before a run, on the embedded engine: cold is cold, primed is warm; both are seen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_runs import known_manifest
from numpy.typing import NDArray

from harness.adapters.base import EngineSettings, Target
from harness.adapters.embedded.adapter import EmbeddedAdapter, EmbeddedEndpoint
from harness.adapters.embedded.engine.sequence import Sequence
from harness.experiment.cache_state import examine_cache, fresh_salt
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.results.analysis import summarize
from harness.results.store.records import RequestRecord
from harness.results.store.sweep_folder import StoredRun, read_runs
from harness.results.warnings.cache_checks import cache_not_cold, cache_not_seen
from harness.sweep_file import load_sweep
from harness.workloads.base import Conversation, Segment, Turn
from tests.harness.experiment.test_sweep import Quiet, adapters

SWEEP = """
name: cached
model: llama-3-70b
hardware: {{gpu: a100-80gb, count: 4}}
engines: [embedded]
base: {{max_model_len: 4096}}
workloads:
  - {workload}
load:
{loads}
cache: {cache}
blocks: 1
"""
BOT = (
    "{kind: shared-prefix, name: bot, prefix_tokens: 2000, suffix_tokens: 100,"
    " output_tokens: 30, groups: 2}"
)
CHAT = (
    "{kind: multi-turn, name: chat, turns: 3, system_tokens: 640, first_tokens: 100,"
    " turn_tokens: 50, output_tokens: 40, history: HISTORY}"
)
LOAD = "  - {concurrency: 4, requests: 24}"
Once = Callable[..., list[StoredRun]]


def ran(
    folder: Path,
    cache: str,
    workload: str = BOT,
    loads: str = LOAD,
    embedded: EmbeddedAdapter | None = None,
) -> list[StoredRun]:
    folder.mkdir(exist_ok=True)
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.format(workload=workload, loads=loads, cache=cache), encoding="utf-8")
    made = adapters(embedded)
    plan = make_plan(load_sweep(path, engines=tuple(made), environment={}), made)
    SweepRunner(plan, made, folder / "out").run(Quiet())
    return [run for run in read_runs(folder / "out") if run.manifest.arm == "baseline"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """What `ran` returns, each sweep of a state and a workload run once for all that read it."""
    return cache(lambda *asked: ran(tmp_path_factory.mktemp("once"), *asked))


def ttfts_ns(run: StoredRun) -> list[int]:
    return (run.records.columns["first_byte_ns"] - run.records.columns["sent_ns"]).tolist()


def found_tokens(run: StoredRun) -> int:
    return int(run.records.columns["cached_prompt_tokens"].sum())


def test_two_cold_runs_of_one_start_are_the_same(once: Once, tmp_path: Path) -> None:
    """What ran before leaves no trace: the same texts again take the same time, token by token."""
    other = "  - {concurrency: 4, requests: 24, output_tokens: 29}\n"
    [alone] = once("cold")
    both = ran(tmp_path / "after", "cold", loads=other + LOAD)
    [second] = [run for run in both if run.manifest.seed == alone.manifest.seed]

    assert len(both) == 2
    assert str(second.manifest.started) >= min(str(run.manifest.started) for run in both)
    assert second.records.columns.equals(alone.records.columns)
    assert second.records.event_time_ns.tolist() == alone.records.event_time_ns.tolist()
    assert second.manifest.model_dump()["cache"]["state"] == "cold"
    assert second.manifest.model_dump()["cache"]["answers_checked"] == 24
    assert second.manifest.model_dump()["cache"]["answers_over_limit"] == 0


def test_primed_prefixes_are_found_by_the_first_requests(once: Once) -> None:
    """Each group's prefix was sent once; the first of each group starts sooner than when cold."""
    [cold], [primed] = once("cold"), once("primed")

    assert primed.manifest.model_dump()["cache"]["primed_prefixes"] == 2
    assert primed.manifest.model_dump()["cache"]["primed_tokens"] == 4000
    assert primed.manifest.status == cold.manifest.status == "ok"
    assert primed.records.columns["cached_prompt_tokens"].tolist() == [2000] * 24
    assert cold.records.columns["cached_prompt_tokens"].tolist()[:2] == [0, 0]
    assert all(
        after < before
        for after, before in zip(ttfts_ns(primed)[:2], ttfts_ns(cold)[:2], strict=True)
    )
    assert len(primed.records) == 24
    assert (
        primed.manifest.model_dump()["counters"]["prompt_tokens"] == 24 * 2100
    )  # nothing of the priming
    assert primed.manifest.prefix_hit_ceiling == pytest.approx(2000 / 2100)


def test_steady_asks_other_texts_first(once: Once) -> None:
    """The cache is full of them, none is this run's, and no fewer hits come than when cold."""
    [cold], [steady] = once("cold"), once("steady")

    before = steady.manifest.model_dump()["cache"]
    assert before["requests_before"] >= 24
    assert before["tokens_before"] > 24 * 130
    assert before["turned_over"] == (
        before["tokens_before"] >= steady.manifest.model_dump()["facts"]["kv_tokens"]
    )
    assert found_tokens(steady) >= found_tokens(cold)
    assert steady.manifest.status == "ok"
    assert any("turned over" in note for note in steady.manifest.notes) != before["turned_over"]


class Remembering(EmbeddedEndpoint):
    """Keeps its cache; from its second run on it reads the same beginning in every request."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._resets = 0
        submit = self.core.submit

        def remember(prompt_ids: NDArray[np.int32], *others: int, **options: bool) -> Sequence:
            if self._resets > 1:
                prompt_ids = prompt_ids.copy()
                prompt_ids[:1000] = 7
            return submit(prompt_ids, *others, **options)

        self.core.submit = remember  # type: ignore[method-assign, assignment]

    def reset(self) -> None:
        """Empty nothing."""
        self._resets += 1


class RememberingAdapter(EmbeddedAdapter):
    """Starts it."""

    def start(self, settings: EngineSettings) -> AbstractContextManager[EmbeddedEndpoint]:
        """Start an engine with a warm cache."""
        return nullcontext(Remembering(settings))


def test_a_cache_that_was_not_emptied_makes_the_run_void(tmp_path: Path) -> None:
    """Its second run of the same texts finds what the first one left: no figure of it is shown."""
    twice = f"{LOAD}\n  - {{concurrency: 4, requests: 24, output_tokens: 31}}"
    runs = ran(tmp_path, "cold", loads=twice, embedded=RememberingAdapter())

    first, second = sorted(runs, key=lambda run: str(run.manifest.status))
    assert first.manifest.status == "ok"
    assert second.manifest.status == "void"
    assert "the cache was warm" in str(second.manifest.reason)
    told = {row["key"]: row for row in summarize(tmp_path / "out").document()["runs"]}
    checks = {one["name"] for one in told[second.manifest.key]["warnings"]}
    assert "cache_not_cold" in checks


@pytest.mark.parametrize("history", ["recorded", "live"])
@pytest.mark.parametrize("state", ["cold", "primed", "steady"])
def test_chats_stay_within_what_they_can_find(once: Once, state: str, history: str) -> None:
    """Also with the server's own answers in their prompts; none is above its limit."""
    [run] = once(state, CHAT.replace("HISTORY", history))

    assert run.manifest.status == "ok"
    assert run.manifest.model_dump()["cache"]["answers_over_limit"] == 0
    assert run.manifest.model_dump()["cache"]["state"] == state
    assert run.manifest.history == history


def test_state_and_history_are_in_the_key(once: Once) -> None:
    """Runs of two states are two runs; the requests are the same."""
    runs = [
        once(state, CHAT.replace("HISTORY", history))[0].manifest
        for state, history in (("cold", "recorded"), ("primed", "recorded"), ("cold", "live"))
    ]

    assert len({run.key for run in runs}) == 3
    assert len({run.seed for run in runs}) == 1


# --- what each answer may have found


def asked(*prompts: tuple[Segment, ...]) -> list[Conversation]:
    return [
        Conversation(conversation_id=str(i), turns=(Turn(prompt=prompt, output_tokens=1),))
        for i, prompt in enumerate(prompts)
    ]


def record(
    name: str, sent_ns: int, first_ns: int, cached: int | None, tokens: int
) -> RequestRecord:
    return RequestRecord(
        request_id=name,
        conversation=name,
        turn=0,
        scheduled_ns=sent_ns,
        sent_ns=sent_ns,
        first_byte_ns=first_ns,
        token_events=np.array([[first_ns, 1]]),
        closed_ns=first_ns,
        prompt_tokens=tokens,
        cached_prompt_tokens=cached,
        asked_tokens=1,
    )


PREFIX = Segment(1, 40)
TWO = asked((PREFIX, Segment(2, 10)), (PREFIX, Segment(3, 10)))


def over(
    *records: RequestRecord, primed: Any = (), block: int | None = 16
) -> list[tuple[str, int, int]]:
    return list(examine_cache(records, TWO, primed, block).over)


def test_only_what_came_before_may_be_found() -> None:
    """In whole blocks; a request sent after the first byte has left nothing to find."""
    assert over(record("0", 0, 5, 0, 50), record("1", 10, 15, 32, 50)) == []
    assert over(record("0", 0, 5, 0, 50), record("1", 10, 15, 40, 50)) == [("1", 40, 32)]
    assert over(record("0", 0, 5, 32, 50), record("1", 10, 15, 32, 50)) == [("0", 32, 0)]
    assert over(record("0", 0, 5, 0, 50), record("1", 10, 15, 40, 50), block=None) == []


def test_a_server_need_not_keep_the_order_of_sending() -> None:
    """Sent before, answered after: it may have found what the later one left."""
    assert over(record("0", 0, 25, 32, 50), record("1", 1, 15, 0, 50)) == []


def test_what_was_primed_may_be_found_by_the_first() -> None:
    """A prefix that was sent before the run is no fault."""
    assert over(record("0", 0, 5, 32, 50), primed=[(PREFIX,)]) == []


def test_a_template_may_be_shared_too() -> None:
    """What the server counts beyond the tokens sent stands in front of every prompt."""
    assert over(record("0", 0, 5, 16, 70)) == []
    assert over(record("0", 0, 5, 32, 70)) == [("0", 32, 16)]


def test_answers_without_counts_are_told(tmp_path: Path) -> None:
    """Nothing is vouched for where no answer tells; with caching off there is nothing to see."""
    finding = examine_cache([record("0", 0, 5, None, 50)], TWO, (), 16)
    figures: Any = None
    cache = {"state": "cold", **finding.facts()}
    manifest = known_manifest(cache=cache, toggles={"prefix_caching": "on"})
    off = known_manifest(cache=cache, toggles={"prefix_caching": "off"})
    steady = known_manifest(cache={**cache, "state": "steady"}, toggles={"prefix_caching": "on"})

    doubt = cache_not_seen(figures, manifest)
    assert doubt is not None
    assert "cold" in doubt.message
    assert cache_not_cold(figures, manifest) is None
    assert cache_not_seen(figures, off) is None
    assert cache_not_seen(figures, steady) is None


class NotEmptied:
    """An endpoint whose cache stays."""

    def __init__(self, fields: frozenset[str], emptied: bool) -> None:
        self.transport = Target(url="http://127.0.0.1:1", model="m", fields=fields)
        self._emptied = emptied

    def facts(self) -> dict[str, Any]:
        return {} if self._emptied else {"cache_emptied": False}


def salt_of(endpoint: Any) -> str | None:
    return fresh_salt(endpoint, endpoint.transport)


def test_a_salt_is_fresh_and_only_where_the_cache_stays() -> None:
    """Two runs have two salts, so neither finds what the other left."""
    stays = NotEmptied(frozenset({"cache_salt"}), emptied=False)

    first, second = salt_of(stays), salt_of(stays)
    assert first is not None
    assert first != second
    assert salt_of(NotEmptied(frozenset(), emptied=False)) is None
    assert salt_of(NotEmptied(frozenset({"cache_salt"}), emptied=True)) is None
