"""What the prefix cache holds when a run begins, and whether the run found what it may find there.

`cold`: nothing. `primed`: every prefix that conversations share. `steady`: what the same workload
with other texts leaves. `as found`: what others have left on a server. The server's count for each
answer is compared with what its request can have found; without such counts nothing is certain.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.adapters import Endpoint, EngineError, Transport
from harness.load import ClosedLoop, RequestSet, Schedule
from harness.results.store import RequestRecord
from harness.workloads import Conversation, Turn, WorkloadError
from harness.workloads.prompts import (
    PrefixTree,
    Prompt,
    cached_tokens_limit,
    left_behind,
    shared_prefixes,
)

# Sends requests before the run, in the way of the run: when, and which → their records.
Play = Callable[[Schedule, tuple[Conversation, ...]], list[RequestRecord]]
Draw = Callable[[int], RequestSet]  # round → the same workload with other texts

AS_FOUND = "as found"
_MOST_ROUNDS = 8  # of other texts; a cache that is not full by then is noted as such
_PRIMING_AT_ONCE = 8  # never more than the run itself has open at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStart:
    """What the prefix cache holds of this run's texts at its start, and how that got there."""

    state: str  # cold | primed | steady | as found
    primed: tuple[Prompt, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # of this state only, for manifests
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return the state as manifests hold it."""
        return {"state": self.state, **self.details}


def fresh_salt(endpoint: Endpoint, transport: Transport) -> str | None:
    """Return a salt that no request had before, where the cache cannot be emptied; else None."""
    if endpoint.facts().get("cache_emptied", True) or "cache_salt" not in transport.fields:
        return None
    return secrets.token_hex(8)


def primed(
    request_set: RequestSet, play: Play, at_once: int, block_tokens: int | None
) -> CacheStart:
    """Send every shared prefix once and return what then is cached.

    Raises `EngineError` when one fails: the run would not be what its label says.
    """
    prefixes = shared_prefixes(request_set.conversations, block_tokens or 1)
    if prefixes:
        conversations = tuple(
            Conversation(
                conversation_id=f"prefix {number}", turns=(Turn(prompt=prefix, output_tokens=1),)
            )
            for number, prefix in enumerate(prefixes)
        )
        records = play(ClosedLoop(concurrency=min(at_once, _PRIMING_AT_ONCE)), conversations)
        failed = [one for one in records if one.error_kind is not None]
        if failed:
            raise EngineError(
                f"the cache could not be primed: {len(failed)} of {len(prefixes)} shared prefixes "
                f"failed, one with {failed[0].error_kind}: {failed[0].error}"
            )
    tokens = sum(segment.tokens for prefix in prefixes for segment in prefix)
    note = () if prefixes else ("no prefix is shared, so primed is as cold",)
    details = {"primed_prefixes": len(prefixes), "primed_tokens": tokens}
    return CacheStart(state="primed", primed=tuple(prefixes), details=details, notes=note)


def steady(
    draw: Draw,
    play: Callable[[RequestSet], list[RequestRecord]],
    kv_tokens: int | None,
    max_failed_share: float,
) -> CacheStart:
    """Send the workload with other texts until the cache has turned over; return the result.

    Once where its size is not known. Raises `EngineError` when too many of these requests fail.
    """
    requests = tokens = rounds = 0
    while rounds < _MOST_ROUNDS and (rounds == 0 or (kv_tokens and tokens < kv_tokens)):
        try:
            request_set = draw(rounds)
        except WorkloadError:  # a random load in which nothing happens to start
            break
        records = play(request_set)
        failed = sum(one.error_kind is not None for one in records)
        if failed > max_failed_share * len(records):
            raise EngineError(
                f"the cache could not be made steady: {failed} of {len(records)} requests failed"
            )
        tokens += sum(_new_tokens(one) for one in records)
        requests, rounds = requests + len(records), rounds + 1
    turned_over = None if kv_tokens is None else tokens >= kv_tokens
    details = {"requests_before": requests, "tokens_before": tokens, "turned_over": turned_over}
    notes = () if turned_over else (_not_turned_over(requests, tokens, kv_tokens),)
    return CacheStart(state="steady", details=details, notes=notes)


def _not_turned_over(requests: int, tokens: int, kv_tokens: int | None) -> str:
    sent = f"steady: {requests:,} requests before the run brought {tokens:,} new tokens"
    if kv_tokens is None:
        return f"{sent}; the cache's size is not known, nor whether it has turned over"
    return f"{sent}, fewer than the {kv_tokens:,} that the cache holds: it has not turned over"


def _new_tokens(record: RequestRecord) -> int:
    """Return the tokens that a request added to the cache, as far as they are known."""
    found = record.cached_prompt_tokens or 0
    return max(0, (record.prompt_tokens or 0) - found) + (record.output_tokens or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFinding:
    """How many answers report their cached tokens, and which found more than they may."""

    checked: int
    over: tuple[tuple[str, int, int], ...]  # request, tokens cached, tokens that it may find

    def facts(self) -> dict[str, Any]:
        """Return the finding as manifests hold it; of those over the limit the worst."""
        worst = max(self.over, key=lambda one: one[1] - one[2], default=None)
        names = ("request_id", "cached_tokens", "limit_tokens")
        return {
            "answers_checked": self.checked,
            "answers_over_limit": len(self.over),
            "worst": None if worst is None else dict(zip(names, worst, strict=True)),
        }

    def fault(self) -> str | None:
        """Return why the cache was not cold; None where no answer shows that."""
        if not self.over:
            return None
        name, cached, limit = max(self.over, key=lambda one: one[1] - one[2])
        return (
            f"the cache was warm: {len(self.over)} of {self.checked} requests found more in it "
            f"than they share with the requests before them ({name}: {cached:,} tokens, at most "
            f"{limit:,} could be)"
        )


def examine_cache(
    records: Sequence[RequestRecord],
    conversations: Sequence[Conversation],
    primed_prefixes: Sequence[Prompt],
    block_tokens: int | None,
) -> CacheFinding:
    """Compare each answer's count of cached tokens with what its request can have found.

    That is the longest prefix it shares with what was primed and with any request that was sent
    before its own first byte came, in whole blocks of `block_tokens`. By that much, and not by
    what was sent before it: servers need not keep that order. What the server counts beyond the
    tokens sent (a chat template, a tokenizer) may be shared as well.
    """
    prompts = {
        (one.conversation_id, number): (turn.prompt, left)
        for one in conversations
        for number, (turn, left) in enumerate(zip(one.turns, left_behind(one), strict=True))
    }
    checked, over = 0, []
    limits = _limits(records, prompts, primed_prefixes)
    for index, shared_tokens in limits:
        record = records[index]
        cached = record.cached_prompt_tokens
        if cached is None or record.error_kind is not None:
            continue
        checked += 1
        sent = sum(part.tokens for part in prompts[record.conversation, record.turn][0])
        counted = max(sent, record.prompt_tokens or 0)
        limit = cached_tokens_limit(shared_tokens + counted - sent, counted, block_tokens or 1)
        if cached > limit:
            over.append((record.request_id, cached, limit))
    return CacheFinding(checked=checked, over=tuple(over))


def _limits(
    records: Sequence[RequestRecord],
    prompts: Mapping[tuple[str, int], tuple[Prompt, Prompt]],
    primed_prefixes: Sequence[Prompt],
) -> Iterator[tuple[int, int]]:
    """Yield each record's place with the tokens that its prompt shares with others by then."""
    moments = []
    for index, record in enumerate(records):
        if record.sent_ns is None:
            continue
        first_ns = record.closed_ns if record.first_byte_ns is None else record.first_byte_ns
        moments += [(record.sent_ns, 0, index), (max(first_ns, record.sent_ns), 1, index)]
    tree = PrefixTree()
    for prefix in primed_prefixes:
        tree.add(prefix, len(records))
    for _, has_answered, index in sorted(moments):
        prompt, left = prompts[records[index].conversation, records[index].turn]
        if has_answered:
            yield index, tree.shared_tokens(prompt, index)
        else:
            tree.add(left, index)
