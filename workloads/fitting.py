"""Limit drawn conversations to the context length of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from harness.workloads.base import Conversation, Drawn, Turn, WorkloadError

_DRAWS_FOR_ONE = 100  # refuse a workload when fewer than about 1 in 100 conversations fit
# Conversations whose lengths are drawn together. Another number changes the draws of every seed.
LENGTHS_A_TIME = 256


def fits(turn: Turn, max_model_len: int) -> bool:
    """Return whether prompt tokens plus output tokens are at most `max_model_len`."""
    return turn.prompt_tokens + turn.output_tokens <= max_model_len


def fitting_conversations(
    name: str,
    candidates: Iterator[tuple[Turn, ...]],
    *,
    requests: int | None,
    max_model_len: int,
    reason: str,
) -> Drawn:
    """Return conversations from the endless `candidates` with at least `requests` turns in total.

    A conversation ends before its first turn that does not fit, because later turns contain that
    turn in their history. `skipped` counts the removed turns under `reason`. A conversation with
    no turn left is dropped and the next one replaces it. Raises `WorkloadError`.
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
    """Return `requests`. Raise `WorkloadError` when it is missing or below 1."""
    if requests is None:
        error = WorkloadError(f"{name}: the number of requests is not set")
        error.add_note("set it in the load: `requests: 400`, or a rate and a duration")
        raise error
    if requests < 1:
        raise WorkloadError(f"{name}: requests is {requests}, expected at least 1")
    return requests


def _nothing_fits(
    name: str, turn: Turn, max_model_len: int, dropped: int, kept: int
) -> WorkloadError:
    """Return the error for a workload whose requests are too long for the context."""
    which = "the last one"
    drawn = f"{dropped} of the first {dropped + kept} drawn requests are"
    if not kept:
        which, drawn = "one request", "its requests are"
    error = WorkloadError(
        f"{name}: {drawn} longer than max_model_len {max_model_len}; {which} needs "
        f"{turn.prompt_tokens + turn.output_tokens} tokens "
        f"(prompt {turn.prompt_tokens} + output {turn.output_tokens})"
    )
    error.add_note(
        "use shorter lengths in the workload, or raise max_model_len (under `base` in a sweep, "
        "otherwise in the options of the server)"
    )
    return error
