"""The only place that holds drawn conversations against the context length of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from harness.workloads.base import Conversation, Drawn, Turn, WorkloadError

_DRAWS_FOR_ONE = 100  # a workload of which fewer than about 1 in 100 fits is not the one requested
LENGTHS_A_TIME = 256  # conversations whose lengths are drawn together; part of what a seed means


def fits(turn: Turn, max_model_len: int) -> bool:
    """Return whether prompt and output together are within the context length; equal is within."""
    return turn.prompt_tokens + turn.output_tokens <= max_model_len


def fitting_conversations(
    name: str,
    candidates: Iterator[tuple[Turn, ...]],
    *,
    requests: int | None,
    max_model_len: int,
    reason: str,
) -> Drawn:
    """Return as many of the endless `candidates` as hold at least `requests` turns.

    Each ends before its first turn that does not fit, as the turns after it hold that one in
    their history. What is cut off is counted as `reason`; a candidate without any turn left is
    dropped, and the next one takes its place. Raises `WorkloadError`.
    """
    wanted = _checked_count(name, requests)
    kept: list[Conversation] = []
    turns_kept = turns_cut = dropped = 0
    for candidate in candidates:
        turns = tuple(takewhile(lambda turn: fits(turn, max_model_len), candidate))
        turns_kept += len(turns)
        turns_cut += len(candidate) - len(turns)
        if turns:
            kept.append(Conversation(conversation_id=str(len(kept)), turns=turns))
        else:
            dropped += 1
            if dropped >= _DRAWS_FOR_ONE * (len(kept) + 1):
                raise _nothing_fits(name, candidate[0], max_model_len, dropped, len(kept))
        if turns_kept >= wanted:
            break
    skipped = {reason: turns_cut} if turns_cut else {}
    return Drawn(conversations=tuple(kept), skipped=skipped)


def _checked_count(name: str, requests: int | None) -> int:
    """Return `requests`, which a drawn workload cannot do without. Raises `WorkloadError`."""
    if requests is None:
        error = WorkloadError(f"{name}: drawn requests have no end of their own")
        error.add_note("say how many in the load: `requests: 400`, or a rate and a duration")
        raise error
    if requests < 1:
        raise WorkloadError(f"{name}: {requests} requests asked for, expected at least 1")
    return requests


def _nothing_fits(
    name: str, turn: Turn, max_model_len: int, dropped: int, kept: int
) -> WorkloadError:
    """Return the error of a workload too long for the context."""
    which = "the last"
    drawn = f"{dropped} of the first {dropped + kept} requests drawn are"
    if not kept:
        which, drawn = "one", "its requests are"
    error = WorkloadError(
        f"{name}: {drawn} longer than max_model_len {max_model_len}; {which} needs "
        f"{turn.prompt_tokens + turn.output_tokens} tokens "
        f"(prompt {turn.prompt_tokens} + output {turn.output_tokens})"
    )
    error.add_note(
        "make the workload's lengths smaller, or raise the context: `max_model_len` under `base` "
        "in a sweep, else the server's own"
    )
    return error
