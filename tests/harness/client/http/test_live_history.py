"""Live history: the server's own answers in the next prompts; recorded history as it ever was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_play import LinearTimer, config
from http_asking import LOOPS, Run, on_each_loop
from scripted_server import Script, serving
from served import MODEL, Served, with_server
from streams import DONE, STREAM_HEAD, chunk, chunked, event, exchange, token
from sweep_files import problems, sweep

from harness.adapters.base import Target
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.in_process import InProcessEngine
from harness.client.base import Request
from harness.client.http.aiohttp_client import AiohttpClient
from harness.client.http.client import HttpClient
from harness.client.http.live_history import answer_ids, continued, playable, prompt_ids
from harness.client.http.request_body import RequestOptions, body_bytes
from harness.client.virtual import VirtualClient
from harness.load.loadgen import play, requests_of
from harness.load.schedule import ClosedLoop
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock, VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Conversation, Segment
from harness.workloads.lengths import Fixed, Uniform
from harness.workloads.multi_turn import MultiTurn
from harness.workloads.prompts.token_ids import draw_token_ids

run = pytest.fixture(params=LOOPS)(on_each_loop)
MS = 1_000_000
CHAT = MultiTurn(
    name="chat",
    turns=3,
    system_tokens=Fixed(40),
    first_tokens=Uniform(20, 40),
    turn_tokens=Fixed(20),
    output_tokens=Uniform(5, 15),
    think_time_ns=1000,
)
LIVE = replace(CHAT, history="live")
FIELDS = frozenset({"seed", "ignore_eos", "include_usage", "continuous_usage_stats", "cache_salt"})
VOCABULARY = 32_000
URL = "http://127.0.0.1:8000"
TAKES = Target(url=URL, model="m", fields=FIELDS | {"return_token_ids"}, vocabulary=VOCABULARY)
# Of the bodies as they were before there was any live history.
RECORDED_BODIES = "0421028c648f0c4d7897a813fb7da27b0afc2c10be06a6bdfa21df7fd49094ca"


def chats(workload: MultiTurn, requests: int = 12) -> tuple[Conversation, ...]:
    return workload.draw(requests=requests, seed=5, max_model_len=2000).conversations


def test_recorded_bodies_are_what_they_were() -> None:
    """Byte by byte, as ids and as text, also to a server that could tell ids."""
    digest = hashlib.sha256()
    for vocabulary in (VOCABULARY, None):
        target = replace(TAKES, vocabulary=vocabulary)
        for requests in requests_of(chats(CHAT)):
            for request in requests:
                digest.update(body_bytes(target, RequestOptions(seed=3), request))

    assert digest.hexdigest() == RECORDED_BODIES


def test_live_chats_ask_the_same_questions() -> None:
    """The first bodies differ from recorded ones in the wish for ids only, and so do lengths."""
    for recorded, live in zip(requests_of(chats(CHAT)), requests_of(chats(LIVE)), strict=True):
        assert [one.prompt for one in recorded] == [one.prompt for one in live]
        bodies = [
            json.loads(body_bytes(TAKES, RequestOptions(), one[0])) for one in (recorded, live)
        ]
        assert bodies[1] == {**bodies[0], "return_token_ids": True}
    drawn = LIVE.draw(requests=12, seed=5, max_model_len=2000)
    assert any("history is live" in note for note in drawn.notes)
    assert "live history" in LIVE.describe()


def test_an_answer_stands_where_the_drawn_one_stood() -> None:
    """Behind the prompt before it and in front of the question, over several turns."""
    first, second, third = requests_of(chats(LIVE))[0]
    answers = [np.array([7, 8, 9], np.int32), np.arange(50, 61, dtype=np.int32)]

    second = continued(second, first, answers[0])
    third = continued(third, second, answers[1])

    request_set = draw_token_ids(third.prompt[-1:], VOCABULARY)
    expected = [
        *draw_token_ids(first.prompt, VOCABULARY),
        *answers[0],
        *draw_token_ids(second.prompt[-1:], VOCABULARY),
        *answers[1],
        *request_set,
    ]
    assert prompt_ids(third, VOCABULARY).tolist() == expected
    assert sum(part.tokens for part in third.prompt) == len(expected)


def test_after_a_failed_turn_the_drawn_answer_stands_there() -> None:
    """What follows can be asked; answers before it are the server's all the same."""
    first, second, third = requests_of(chats(LIVE))[0]
    drawn = third.prompt[len(second.prompt)]

    second = continued(second, first, np.array([7], np.int32))
    third = continued(third, second, None)

    assert third.prompt[len(second.prompt)] == drawn
    assert list(third.answers) == [len(first.prompt)]


def told(*ids: int, text: str = "x", space: str = "") -> bytes:
    """An event with the ids of its tokens."""
    choice = {"index": 0, "text": text, "logprobs": None, "token_ids": list(ids)}
    return event({"id": "cmpl-7", "choices": [choice]}).replace(
        b'"token_ids":', b'"token_ids":' + space.encode()
    )


def test_ids_are_read_from_the_stream() -> None:
    """Of all events in order; not the prompt's, and none from a text that looks like them."""
    first = event({"choices": [{"text": "a", "token_ids": [1, 2], "prompt_token_ids": [90, 91]}]})
    fake = told(3, text='","token_ids":[66]')
    stream = [first, fake, told(), told(4, space=" "), DONE]

    found = answer_ids(exchange(chunked(*stream)))

    assert found is not None
    assert found.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "reads",
    [
        chunked(token("a"), DONE),
        [STREAM_HEAD, chunk(told(1))],
        [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"],
        [b"no HTTP at all\r\n\r\n"],
        [],
    ],
    ids=["tells none", "cut off", "refused", "no HTTP", "no answer"],
)
def test_no_ids_are_made_up(reads: Sequence[bytes]) -> None:
    """An answer that failed, or told none, has none."""
    assert answer_ids(exchange(reads)) is None


def test_a_server_of_texts_gets_recorded_history() -> None:
    """And it is said; one that takes and tells ids is asked live."""
    asked = chats(LIVE)

    for target in (
        replace(TAKES, vocabulary=None),
        replace(TAKES, api="chat"),
        replace(TAKES, fields=FIELDS),
    ):
        conversations, notes = playable(target, asked)
        assert not any(one.live for one in conversations)
        assert "recorded, not live" in notes[0]
    assert playable(TAKES, asked) == (asked, ())
    assert playable(InProcessEngine(core=Watched()), asked) == (asked, ())
    assert playable(replace(TAKES, fields=FIELDS), chats(CHAT)) == (chats(CHAT), ())


def client_of(url: str, kind: type[HttpClient | AiohttpClient]) -> HttpClient | AiohttpClient:
    return kind(replace(TAKES, url=url), MonotonicClock())


@pytest.mark.parametrize("kind", [HttpClient, AiohttpClient])
def test_the_next_body_holds_the_answer(run: Run, kind: type[HttpClient]) -> None:
    """It is made when the answer has ended, is due as if it had been there, and counts no less."""
    script = Script(writes=chunked(told(11, 12), told(13), DONE))
    [asked, *_] = chats(LIVE)

    async def main() -> tuple[list[dict[str, Any]], list[RequestRecord], int]:
        async with serving(script) as server, client_of(server.url, kind) as client:
            client.prepare(requests_of([asked])[0][:1])
            made = await play(client, MonotonicClock(), ClosedLoop(concurrency=1), [asked])
            return server.bodies, client.settled(made), client.recorded_turns

    bodies, records, recorded_turns = run(main())

    prompts = [turn.prompt for turn in asked.turns]
    for (before, after), prompt in zip(pairwise(bodies), prompts[1:], strict=True):
        request_set = draw_token_ids(prompt[-1:], VOCABULARY).tolist()
        assert after["prompt"] == [*before["prompt"], 11, 12, 13, *request_set]
    assert all(body["return_token_ids"] is True for body in bodies)
    assert recorded_turns == 0
    for one, other in pairwise(records):
        assert other.scheduled_ns == one.closed_ns + 1000
        assert other.sent_ns is not None
        assert other.sent_ns >= other.scheduled_ns
    assert [one.error_kind for one in records] == [None] * 3


def test_turns_without_ids_are_counted(run: Run) -> None:
    """A server that ignores the wish gets the drawn answers, and it is known."""
    [asked, *_] = chats(LIVE)

    async def main() -> tuple[list[dict[str, Any]], int]:
        script = Script(writes=chunked(token("a"), token("b", finish="stop"), DONE))
        async with serving(script) as server, client_of(server.url, HttpClient) as client:
            await play(client, MonotonicClock(), ClosedLoop(concurrency=1), [asked])
            return server.bodies, client.recorded_turns

    bodies, recorded_turns = run(main())

    assert recorded_turns == 2
    drawn = [draw_token_ids(turn.prompt, VOCABULARY).tolist() for turn in asked.turns]
    assert [body["prompt"] for body in bodies] == drawn


class Watched(EngineCore):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__(config(), LinearTimer())
        self.asked: list[Any] = []

    def submit(self, *arguments: Any, **options: Any) -> Any:
        sequence = super().submit(*arguments, **options)
        self.asked.append(sequence)
        return sequence


def played_virtually(workload: MultiTurn) -> tuple[Watched, list[RequestRecord]]:
    core = Watched()

    async def asks() -> list[RequestRecord]:
        loop = virtual_loop()
        client = VirtualClient(InProcessEngine(core=core), loop)
        return await play(client, VirtualClock(loop), ClosedLoop(concurrency=1), chats(workload))

    return core, run_virtual(asks())


def test_on_virtual_time_the_engine_reads_its_own_answers() -> None:
    """Each prompt begins with the one before and its answer, which are found in the cache."""
    core, records = played_virtually(LIVE)
    _, recorded = played_virtually(CHAT)

    block = core.config.block_size
    for before, after, record in zip(core.asked, core.asked[1:], records[1:], strict=False):
        if record.turn == 0:
            continue
        known = [*before.prompt_ids, *before.output_ids]
        assert after.prompt_ids[: len(known)].tolist() == [int(one) for one in known]
        assert record.cached_prompt_tokens == (len(known) - 1) // block * block
    assert sum(found(one) for one in records) > sum(found(one) for one in recorded)
    assert [one.prompt_tokens for one in records] == [one.prompt_tokens for one in recorded]


def found(record: RequestRecord) -> int:
    return record.cached_prompt_tokens or 0


def test_the_embedded_server_tells_ids_as_vllm_does() -> None:
    """In each event those of its tokens, in the first the prompt's too; whole answers alike."""

    async def main(served: Served) -> None:
        prompt = list(range(2000, 2040))
        fields = {"model": MODEL, "prompt": prompt, "max_tokens": 6}

        streamed = await served.stream("/v1/completions", **fields, return_token_ids=True)
        _, whole = await served.post("/v1/completions", **fields, return_token_ids=True)
        plain = await served.stream("/v1/completions", **fields)

        choices = [one["choices"][0] for one in streamed[:-1]]
        ids = [token for choice in choices for token in choice["token_ids"]]
        assert choices[0]["prompt_token_ids"] == prompt
        assert not any("prompt_token_ids" in choice for choice in choices[1:])
        assert whole["choices"][0]["token_ids"] == ids
        assert whole["choices"][0]["prompt_token_ids"] == prompt
        assert "".join(f" t{token}" for token in ids) == whole["choices"][0]["text"]
        assert len(ids) == 6
        assert "token_ids" not in json.dumps(plain)

    with_server(main)


def test_live_over_http_finds_its_answers_cached() -> None:
    """Prompt and answer of the turn before, in whole blocks; with recorded history the prompt."""

    async def main(served: Served) -> None:
        long = replace(LIVE, output_tokens=Fixed(40), think_time_ns=0)
        [live, *_], [recorded, *_] = chats(long), chats(replace(long, history="recorded"))
        target = replace(TAKES, url=served.url, model=MODEL, vocabulary=128_000)
        target = replace(target, fields=target.fields - {"cache_salt"})
        hits = []
        for chat in (recorded, live):
            await served.post("/reset_prefix_cache")
            async with HttpClient(target, MonotonicClock()) as client:
                made = await play(client, MonotonicClock(), ClosedLoop(concurrency=1), [chat])
                records = client.settled(made)
            assert [one.error_kind for one in records] == [None] * 3
            hits.append([found(one) for one in records])
        lengths = [turn.prompt_tokens for turn in live.turns]
        assert hits[0] == [0, *(tokens // 16 * 16 for tokens in lengths[:2])]
        assert hits[1] == [0, *((tokens + 39) // 16 * 16 for tokens in lengths[:2])]

    with_server(main)


def test_a_sweep_has_one_history(tmp_path: Path) -> None:
    """Chats of both kinds are refused, at the second."""
    chat = (
        "{kind: multi-turn, name: NAME, turns: 2, first_tokens: 9, turn_tokens: 9,"
        " output_tokens: 9, history: HOW}"
    )
    both = [
        chat.replace("NAME", name).replace("HOW", how)
        for name, how in (("a", "live"), ("b", "recorded"))
    ]

    [problem] = problems(tmp_path, workloads=f"[{', '.join(both)}]")

    assert "workloads[1].history: recorded, but workloads[0] has live" in problem
    assert sweep(tmp_path, workloads=f"[{both[0]}]").history == "live"
    assert sweep(tmp_path, workloads=f"[{both[1]}]").history == "recorded"


def test_requests_that_are_not_live_keep_nothing() -> None:
    """Neither the wish for ids nor any answer of a server."""
    request = Request(
        request_id="r", conversation="c", turn=0, prompt=(Segment(1, 4),), output_tokens=2
    )

    assert b"return_token_ids" not in body_bytes(TAKES, RequestOptions(), request)
    assert prompt_ids(request).tolist() == draw_token_ids(request.prompt).tolist()
