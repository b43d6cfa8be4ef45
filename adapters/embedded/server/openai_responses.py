"""Responses of the OpenAI API in vLLM's form: events of a stream, and whole bodies."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from harness.adapters.embedded.engine import Sequence
from harness.adapters.embedded.server.openai_requests import ServedRequest
from harness.adapters.embedded.server.words import text_of

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """Return `data` as one event of a stream."""
    return b"data: " + _json(data) + b"\n\n"


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


class CompletionBody:
    """The response to one request, as a whole body or as events.

    `fingerprint` identifies the simulated engine in the last event.
    """

    def __init__(self, request: ServedRequest, model: str, fingerprint: str) -> None:
        self._request = request
        self._fingerprint = fingerprint
        self._prompt_tokens = len(request.prompt_ids)
        kind = ("chatcmpl", "chat.completion") if request.chat else ("cmpl", "text_completion")
        chunk = ".chunk" if request.chat and request.stream else ""
        self._head = {
            "id": f"{kind[0]}-{uuid.uuid4().hex[:16]}",
            "object": kind[1] + chunk,
            "created": int(time.time()),
            "model": model,
        }
        # The common part of all events is encoded once. The text of a token needs no JSON escapes,
        # so events are built as strings.
        self._opening = "data: " + _json(self._head).decode()[:-1] + ',"choices":[{"index":0,'

    def opening_event(self) -> bytes:
        """Return the event before the first token: for a chat an event with the role."""
        if not self._request.chat:
            return b""
        role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return f"{self._opening}{role}{self._running_usage(0)}}}\n\n".encode()

    def events(self, sequence: Sequence, sent_tokens: int) -> bytes:
        """Return the event with the tokens after `sent_tokens`; also the end of the stream."""
        so_far = sequence.generated_tokens
        ids = sequence.output_ids[sent_tokens:so_far].tolist()
        text = text_of(ids)
        ended = sequence.finished_ns is not None
        reason = '"length","stop_reason":null' if ended else "null"
        if self._request.chat:
            choice = f'"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{reason}'
        else:
            choice = f'"text":"{text}","logprobs":null,"finish_reason":{reason}'
        if self._request.token_ids:
            choice += self._id_fields(ids, first=not sent_tokens)
        mark = f',"system_fingerprint":"{self._fingerprint}"'
        last = mark if ended and not self._request.include_usage else ""
        token = f"{self._opening}{choice}}}]{self._running_usage(so_far)}{last}}}\n\n".encode()
        return token + self._ending(sequence) if ended else token

    def whole(self, sequence: Sequence) -> bytes:
        """Return the whole response."""
        ids = sequence.output_ids.tolist()
        text = text_of(ids)
        choice: dict[str, Any] = {"index": 0}
        if self._request.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": "length", "stop_reason": None}
        if self._request.token_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": self._request.prompt_ids.tolist()}
        return _json(
            {
                **self._head,
                "choices": [choice],
                "usage": self._usage(sequence),
                "system_fingerprint": self._fingerprint,
            }
        )

    def _id_fields(self, ids: list[int], *, first: bool) -> str:
        """Return the token ids of an event, in the first event also those of the prompt."""
        prompt = f',"prompt_token_ids":{self._request.prompt_ids.tolist()}' if first else ""
        return f',"token_ids":{ids}{prompt}'

    def _ending(self, sequence: Sequence) -> bytes:
        if not self._request.include_usage:
            return DONE
        usage = {
            **self._head,
            "choices": [],
            "usage": self._usage(sequence),
            "system_fingerprint": self._fingerprint,
        }
        return event(usage) + DONE

    def _running_usage(self, tokens: int) -> str:
        if not self._request.continuous_usage:
            return ""
        prompt = self._prompt_tokens
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + tokens},'
            f'"completion_tokens":{tokens}}}'
        )

    def _usage(self, sequence: Sequence) -> dict[str, Any]:
        tokens = sequence.generated_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
        }
