"""What a server's running totals moved by over one run, and whether that is this client's doing.

A total that moved further than the client's own tokens counts other clients, or another replica
behind the same address. One that moved less counts one replica of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from harness.adapters import ServerCounters, Target
from harness.experiment.request_facts import TEMPLATE_TOKENS, TEXT_MOST
from harness.results.store import RequestRecord
from harness.workloads import Conversation

# Gauges, not totals: their value at the end counts, not the difference over the run.
_GAUGES = frozenset({"peak_running"})
_SLACK_TOKENS, _SLACK_SHARE = 20, 0.01  # both must be exceeded
_WAITS, _WAIT_S = 5, 0.2  # some servers count a request a moment after its last token


def counter_moves(
    before: ServerCounters, after: ServerCounters
) -> tuple[ServerCounters, tuple[str, ...]]:
    """Return the moves, None for what the server does not count, and remarks on them.

    A counter that comes up in between began at 0. Where none was there before, the totals are those
    of the server's whole life: they show nothing of the run. A total that fell makes all of
    them worthless: the server was restarted, or they are no totals.
    """
    first, last = asdict(before), asdict(after)
    if all(value is None for value in first.values()):
        return ServerCounters(), ()
    moved = {
        name: value if value is None or name in _GAUGES else value - (first[name] or 0)
        for name, value in last.items()
    }
    fell = [name for name, value in moved.items() if value is not None and value < 0]
    if fell:
        text = f"the server's counters went back in the run ({', '.join(fell)}): was it restarted?"
        return ServerCounters(), (f"{text} Nothing is proven by them",)
    return ServerCounters(**moved), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTokens:
    """The tokens that this client's requests can have moved a total by."""

    least: int = 0
    most: float = 0  # infinite where a prompt's length is not known

    def __add__(self, other: OwnTokens) -> OwnTokens:
        """Return the sum of both bounds."""
        return OwnTokens(least=self.least + other.least, most=self.most + other.most)

    def exceeded_by(self, moved: float) -> bool:
        """Return whether a total moved further than these requests explain."""
        return moved - self.most > max(_SLACK_TOKENS, _SLACK_SHARE * self.most)

    def missed_by(self, moved: float) -> bool:
        """Return whether a total moved less than these requests require."""
        return self.least - moved > max(_SLACK_TOKENS, _SLACK_SHARE * self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTraffic:
    """What one run sent and received, failed and cancelled requests included."""

    prompt: OwnTokens
    output: OwnTokens

    def foreign(self, moves: ServerCounters) -> str | None:
        """Return why `moves` are not of these requests alone; None: they may be."""
        for kind, own, moved in self._totals(moves):
            if own.exceeded_by(moved):
                return (
                    f"the server counted {moved:,} {kind} tokens, this client's requests explain "
                    f"{own.most:,.0f}: other clients use it, or several replicas share its counters"
                )
        return None

    def partial(self, moves: ServerCounters) -> str | None:
        """Return why `moves` are of a part of these requests only; None: they may be of all."""
        for kind, own, moved in self._totals(moves):
            found = (moves.cached_prompt_tokens or 0) if kind == "prompt" else 0
            if own.missed_by(moved + found):  # some engines count computed prompt tokens only
                return (
                    f"the server counted {moved:,} {kind} tokens, this client's requests have "
                    f"{own.least:,}: the counters are those of one replica of several"
                )
        return None

    def _totals(self, moves: ServerCounters) -> list[tuple[str, OwnTokens, int]]:
        pairs = (
            ("prompt", self.prompt, moves.prompt_tokens),
            ("output", self.output, moves.output_tokens),
        )
        return [(kind, own, moved) for kind, own, moved in pairs if moved is not None]


def own_traffic(
    records: Sequence[RequestRecord], conversations: Sequence[Conversation], target: Target
) -> OwnTraffic:
    """Return the bounds of a run's own prompt and output tokens.

    An answer with the server's count is exact. Of a failed request the server may have computed
    anything from nothing to all that was requested.
    """
    as_ids = target.api != "chat" and target.vocabulary is not None
    most = {
        (one.conversation_id, number): turn.prompt_tokens
        if as_ids
        else TEXT_MOST * turn.prompt_tokens + TEMPLATE_TOKENS
        for one in conversations
        for number, turn in enumerate(one.turns)
        if number == 0 or not one.live
    }
    sent = [one for one in records if one.sent_ns is not None]
    nothing = OwnTokens()
    return OwnTraffic(
        prompt=sum((_prompt(one, most) for one in sent), nothing),
        output=sum((_output(one) for one in sent), nothing),
    )


def _prompt(record: RequestRecord, most: Mapping[tuple[str, int], float]) -> OwnTokens:
    counted = record.prompt_tokens
    if _is_counted(record) and counted is not None:
        return OwnTokens(least=counted, most=counted)
    return OwnTokens(most=max(counted or 0, most.get((record.conversation, record.turn), math.inf)))


def _output(record: RequestRecord) -> OwnTokens:
    if _is_counted(record) and record.output_tokens is not None:
        return OwnTokens(least=record.output_tokens, most=record.output_tokens)
    seen = int(record.token_events[:, 1].sum())
    return OwnTokens(
        least=seen if record.error_kind is None else 0,
        most=max(seen, record.asked_tokens, record.output_tokens or 0),
    )


def _is_counted(record: RequestRecord) -> bool:
    return record.error_kind is None and record.output_tokens_source == "usage"


def settled_moves(
    read: Callable[[], tuple[ServerCounters, tuple[str, ...]]],
    traffic: OwnTraffic,
    wait: Callable[[float], None],
) -> tuple[ServerCounters, tuple[str, ...], str | None]:
    """Return the moves of the counters, remarks, and why they are left out; None: they are used.

    `read` is called again, for up to a second, while the server has not counted all requests.
    """
    moves, remarks = read()
    for _ in range(_WAITS):
        if traffic.partial(moves) is None:
            break
        wait(_WAIT_S)
        moves, remarks = read()
    fault = traffic.foreign(moves) or traffic.partial(moves)
    return (ServerCounters() if fault else moves), remarks, fault
