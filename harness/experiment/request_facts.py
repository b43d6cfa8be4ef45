"""Facts about a run's requests for its manifest: what a diagnosis needs, and counts of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.adapters import EngineSettings, Target
from harness.adapters.embedded import decode_floor
from harness.load import RequestSet
from harness.results.store import RequestRecord
from harness.workloads import Conversation

# Of prompts as text a word is about a token; a template and a system prompt of its own come on top.
_TEXT_FEWEST, TEXT_MOST, TEMPLATE_TOKENS = 0.5, 2.0, 256


def diagnosis_facts(settings: EngineSettings | None, request_set: RequestSet) -> dict[str, Any]:
    """Return `decode_floor` and `prompt_overlap` for a manifest; None for what is not known.

    `settings` None: the hardware of this server is not known. The floor is that of the model on
    the GPU, whichever engine runs it.
    """
    floor = None if settings is None else decode_floor(settings)
    overlap = request_set.overlap
    return {
        "decode_floor": None if floor is None else asdict(floor),
        "prompt_overlap": None if overlap is None else asdict(overlap),
    }


def prompt_counts(
    records: Sequence[RequestRecord], conversations: Sequence[Conversation], target: Target
) -> dict[str, Any]:
    """Return how prompts went out, their tokens as sent and as counted, and how many differ.

    Of the answered requests whose prompt tokens are known; the others count as `untold`. Ids leave
    nothing to count differently; text does, and only a count that no template explains differs.
    Later turns of a live chat, which hold the server's own answers, are left out.
    """
    sent = {
        (one.conversation_id, number): turn.prompt_tokens
        for one in conversations
        for number, turn in enumerate(one.turns)
        if number == 0 or not one.live
    }
    answered = [
        one for one in records if one.error_kind is None and (one.conversation, one.turn) in sent
    ]
    pairs = [
        (sent[one.conversation, one.turn], one.prompt_tokens)
        for one in answered
        if one.prompt_tokens is not None
    ]
    as_ids = target.api == "completions" and target.vocabulary is not None
    return {
        "form": "ids" if as_ids else target.api,
        "requests": len(pairs),
        "sent_tokens": sum(tokens for tokens, _ in pairs),
        "counted_tokens": sum(tokens for _, tokens in pairs),
        "untold": len(answered) - len(pairs),
        "differing": sum(not _agree(*pair, as_ids=as_ids) for pair in pairs),
    }


def _agree(sent: int, counted: int, *, as_ids: bool) -> bool:
    if as_ids:
        return sent == counted
    return _TEXT_FEWEST * sent <= counted <= TEXT_MOST * sent + TEMPLATE_TOKENS
