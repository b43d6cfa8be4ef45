"""What TensorRT-LLM counts, added up: iterations, finished requests, and what follows. Pure.

Not yet run against the real TensorRT-LLM: names and meanings are those of its sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters.base import ServerCounters
from harness.adapters.server_metrics import ServerMetrics

_UNRECORDED = 1  # iterations in a row, at most, of which a busy engine keeps no record

_Record = Mapping[str, Any]


@dataclass(slots=True)
class IterationTotals:
    """Sums over the records of `/metrics`, one an iteration; of blocks the server's own totals."""

    iterations: int = 0  # that computed anything
    started: int = 0  # requests taken in
    completed: int = 0
    prompt_parts: int = 0  # over all iterations, the prompts of which a part was computed
    computed_prompt_tokens: int = 0
    generating: int = 0  # over all iterations, the sequences that were past their prompt
    mixed: int = 0  # iterations with prompts and with sequences past theirs
    paused: int = 0
    joined: int = 0  # sequences that joined others that were past their prompt, at least
    peak: int = 0  # sequences of one iteration
    speculates: bool = False
    drafted: int = 0
    accepted: int = 0
    verified: int = 0
    reused_blocks: int | None = None
    missed_blocks: int | None = None
    block_tokens: int | None = None
    most_blocks: int | None = None
    lost: str | None = None  # why these are not the totals
    _split: int = 0
    _parts_settled: int = 0  # parts beyond one a request, as of when `_split` was counted
    _open: int = 0  # requests that the last iteration left unfinished
    _last: tuple[int, int, int] | None = None  # the last iteration: number, sequences, past prompt

    @property
    def busy(self) -> bool:
        """Whether requests are in flight, as far as the records show."""
        return self._open > 0 and self.completed < self.started

    def add(self, records: Iterable[Any]) -> None:
        """Add records, in the order of their iterations."""
        for record in records:
            if isinstance(record, Mapping):
                self._add(record)

    def split_prompts(self, most_parts: int) -> int:
        """Return how many prompts took more than one iteration, at least.

        A prompt has at most `most_parts`. Counted up to the last call with nothing on its way.
        """
        beyond = self.prompt_parts - max(self.started, self.completed) - self.paused
        more = beyond - self._parts_settled
        if not self.busy and more > 0:
            self._split += -(-more // max(1, most_parts - 1))
            self._parts_settled = beyond
        return self._split

    def _add(self, record: _Record) -> None:
        batch = _section(record, "inflightBatchingStats")
        parts, past = _number(batch, "numContextRequests"), _number(batch, "numGenRequests")
        done = _number(record, "numCompletedRequests")
        self._follow(_number(record, "iter"), parts + past, past)
        self.iterations += parts + past > 0
        self.started += _number(record, "numNewActiveRequests")
        self.completed += done
        self.prompt_parts += parts
        self.computed_prompt_tokens += _number(batch, "numCtxTokens")
        self.generating += past
        self.mixed += parts > 0 and past > 0
        self.paused += _number(batch, "numPausedRequests")
        self.peak = max(self.peak, parts + past)
        self._open = max(0, _number(record, "numActiveRequests") - done)
        self._speculation(record)
        self._blocks(_section(record, "kvCacheStats"))

    def _follow(self, number: int, sequences: int, past: int) -> None:
        """Hold an iteration against the one before: were any left out, did sequences join."""
        if self._last is not None:
            last_number, last_sequences, last_past = self._last
            missing = number - last_number - 1
            if self._open and missing > _UNRECORDED:
                self.lost = f"{missing} iterations before number {number} were never told"
            if last_past and past:
                self.joined += max(0, sequences - last_sequences)
        self._last = (number, sequences, past)

    def _speculation(self, record: _Record) -> None:
        stats = _section(record, "specDecodingStats")  # null where nothing is drafted
        self.speculates |= bool(stats)
        self.drafted += _number(stats, "numDraftTokens")
        self.accepted += _number(stats, "numAcceptedTokens")
        self.verified += _number(stats, "numRequestsWithDraftTokens")

    def _blocks(self, stats: _Record) -> None:
        if stats:  # newer versions report them every now and then only
            self.reused_blocks = _number(stats, "reusedBlocks")
            self.missed_blocks = _number(stats, "missedBlocks")
            self.block_tokens = _number(stats, "tokensPerBlock") or None
            self.most_blocks = _number(stats, "maxNumBlocks") or None


@dataclass(slots=True)
class RequestTotals:
    """Sums over what `/perf_metrics` reports of each finished request."""

    finished: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, requests: Iterable[Any]) -> None:
        """Add requests, each of which the server reports once."""
        for request in requests:
            metrics = _section(request, "perf_metrics") if isinstance(request, Mapping) else {}
            blocks = _section(metrics, "kv_cache_metrics")
            drafts = _section(metrics, "speculative_decoding")
            self.finished += 1
            self.reused_blocks += _number(blocks, "num_reused_blocks")
            self.missed_blocks += _number(blocks, "num_missed_blocks")
            self.drafted += _number(drafts, "total_draft_tokens")
            self.accepted += _number(drafts, "total_accepted_draft_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingRules:
    """What the server's counters mean under the settings that it was started with."""

    prefix_caching: bool  # blocks are looked up
    counts_admissions: bool  # a rise of the sequences of an iteration means that one was admitted
    max_prompt_tokens: int


def counters_of(
    iterations: IterationTotals,
    requests: RequestTotals,
    metrics: ServerMetrics,
    rules: CountingRules,
) -> ServerCounters:
    """Return the totals; None where nothing counts, for all iterations where some were lost.

    Newer versions count tokens. Of an older one's, cached are whole blocks, and those of a prompt
    what was computed and what was cached; without the iterations a prompt is rounded up to blocks.
    """
    output = metrics.count("trtllm_generation_tokens")
    if iterations.lost is not None:
        return _without_iterations(iterations.block_tokens, requests, metrics)
    size, reused = iterations.block_tokens, iterations.reused_blocks
    by_blocks = None if size is None or reused is None else reused * size
    cached = metrics.count("trtllm_prompt_cached_tokens")
    cached = by_blocks if cached is None else cached
    prompt = metrics.count("trtllm_prompt_tokens")
    if prompt is None and cached is not None:
        prompt = iterations.computed_prompt_tokens + cached
    firsts = max(iterations.started, iterations.completed)
    parts = 1 if size is None else rules.max_prompt_tokens // size + 1
    return ServerCounters(
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
        looked_up_prompt_tokens=prompt if rules.prefix_caching else None,
        output_tokens=output,
        drafted_tokens=iterations.drafted,
        accepted_tokens=iterations.accepted if iterations.speculates else None,
        verify_steps=iterations.verified if iterations.speculates else None,
        preemptions=iterations.paused,
        steps=iterations.iterations,
        sequence_steps=iterations.generating + min(iterations.prompt_parts, firsts),
        split_prefills_at_least=iterations.split_prompts(parts),
        mixed_steps=iterations.mixed,
        late_admissions=iterations.joined if rules.counts_admissions else None,
        peak_running=iterations.peak,
    )


def _without_iterations(
    size: int | None, requests: RequestTotals, metrics: ServerMetrics
) -> ServerCounters:
    cached = prompt = None
    if size is not None and requests.finished:
        cached = requests.reused_blocks * size
        prompt = cached + requests.missed_blocks * size
    counted = metrics.count("trtllm_prompt_tokens")
    counted_cached = metrics.count("trtllm_prompt_cached_tokens")
    return ServerCounters(
        prompt_tokens=prompt if counted is None else counted,
        cached_prompt_tokens=cached if counted_cached is None else counted_cached,
        output_tokens=metrics.count("trtllm_generation_tokens"),
        drafted_tokens=requests.drafted if requests.finished else None,
        accepted_tokens=requests.accepted if requests.drafted else None,
    )


def _section(record: _Record, name: str) -> _Record:
    section = record.get(name)
    return section if isinstance(section, Mapping) else {}


def _number(record: _Record, name: str) -> int:
    value = record.get(name)
    return int(value) if isinstance(value, int | float) else 0
