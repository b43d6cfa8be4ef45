"""One request before a load finds out which fields a server takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from raw_server import good, raw_server, refused
from streams import a_request

from harness.adapters.base import Target
from harness.cli import main
from harness.client.base import failed_record
from harness.experiment.probe import settled
from harness.results.store.records import RequestRecord

ALL = frozenset({"seed", "ignore_eos", "include_usage", "continuous_usage_stats"})
TARGET = Target(url="http://h", model="m", fields=ALL, vocabulary=4096)


def refusing(*refused_fields: str, ids: bool = False, words: str = "bad request") -> Any:
    """A server that refuses these fields, and what it was asked with."""
    seen: list[Target] = []

    def ask(target: Target) -> RequestRecord:
        seen.append(target)
        bad = target.fields & set(refused_fields) or (ids and target.vocabulary is not None)
        record = failed_record(a_request(), 0, closed_ns=1, kind="http_400", text=words)
        return record if bad else replace(record, error_kind=None, error=None)

    return ask, seen


def test_a_server_that_takes_all_is_asked_once() -> None:
    """And nothing need be said of it."""
    ask, seen = refusing()

    found = settled(TARGET, ask)

    assert (found.transport, found.notes, len(seen)) == (TARGET, (), 1)


@pytest.mark.parametrize("name", sorted(ALL - {"include_usage"}))
def test_a_field_that_is_refused_is_left_out_and_named(name: str) -> None:
    """With the server's words, and what follows; the one that it names is tried first."""
    ask, seen = refusing(name, words=f"unknown field \x1b{name}")

    found = settled(TARGET, ask)

    assert found.transport == replace(TARGET, fields=ALL - {name})
    assert len(seen) == 2
    (note,) = found.notes
    assert f"(unknown field \\x1b{name}), so it is not sent: " in note


def test_without_usage_there_is_no_running_usage() -> None:
    """The one is an option of the other."""
    ask, _ = refusing("include_usage", words="stream_options: include_usage")

    assert settled(TARGET, ask).transport.fields == {"seed", "ignore_eos"}


def test_several_that_are_refused_are_all_left_out() -> None:
    """What is taken is kept."""
    ask, _ = refusing("seed", "ignore_eos")

    found = settled(TARGET, ask)

    assert found.transport.fields == {"include_usage", "continuous_usage_stats"}
    assert [note.split()[3] for note in found.notes] == ["ignore_eos", "seed"]


def test_token_ids_that_are_refused_go_out_as_text() -> None:
    """With all fields that it takes."""
    ask, _ = refusing("seed", ids=True)

    found = settled(TARGET, ask)

    assert found.transport == replace(TARGET, vocabulary=None, fields=ALL - {"seed"})
    assert "prompts go out as text" in found.notes[-1]


def test_where_leaving_out_does_not_help_nothing_is_left_out() -> None:
    """It is the model, or the key: the load itself tells."""

    def ask(_: Target) -> RequestRecord:
        return failed_record(a_request(), 0, closed_ns=1, kind="http_400", text="no such model")

    assert settled(TARGET, ask).transport == TARGET


def strict(is_bad: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], bytes]:
    """A server that answers 400 to what is bad."""
    return lambda asked: refused("what is this?") if is_bad(asked) else good(asked)


@pytest.mark.parametrize(
    ("is_bad", "said", "left"),
    [
        (lambda asked: "ignore_eos" in asked, "refuses ignore_eos", lambda a: "seed" in a),
        (
            lambda asked: "stream_options" in asked,
            "stream_options.include_usage",
            lambda a: "ignore_eos" in a,
        ),
        (
            lambda asked: isinstance(asked["prompt"], list),
            "prompts of token ids",
            lambda a: isinstance(a["prompt"], str),
        ),
    ],
)
def test_a_strict_server_is_loaded(
    is_bad: Callable[[dict[str, Any]], bool],
    said: str,
    left: Callable[[dict[str, Any]], bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All requests are answered, what is not sent is noted, and all else still is sent."""
    words = ("--model", "m", "--requests", "5", "--output-tokens", "3", "--json")
    with raw_server(strict(is_bad)) as server:
        main(["load", server.url, *words])
        bodies = server.bodies[-5:]

    summary = json.loads(capsys.readouterr().out)
    assert summary["runs"][0]["metrics"]["completed"] == 5
    assert any(said in note for note in summary["notes"])
    assert all(left(body) for body in bodies)


OPEN = ("--rate", "50", "--duration", "0.1 s", "--arrivals", "constant")


def test_a_server_that_takes_all_gets_the_load_and_no_request_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A closed loop that is refused has lost no time, so nothing needs to be asked before it."""
    with raw_server() as server:
        main(["load", server.url, "--model", "m", "--requests", "3", "--json"])
        tokens = [body["max_tokens"] for body in server.bodies]

    assert tokens == [256, 256, 256]
    assert json.loads(capsys.readouterr().out)["runs"][0]["counts"]["sent"] == 3


def test_before_an_open_loop_one_request_for_one_token_is_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a strict server would refuse the whole length of it; it is in no record."""
    with raw_server(strict(lambda asked: "seed" in asked)) as server:
        main(["load", server.url, "--model", "m", *OPEN, "--json"])
        bodies = list(server.bodies)

    summary = json.loads(capsys.readouterr().out)
    sent = summary["runs"][0]["counts"]["sent"]
    assert [body["max_tokens"] for body in bodies[-sent:]] == [256] * sent
    assert {body["max_tokens"] for body in bodies[:-sent]} == {1}
    assert summary["runs"][0]["counts"]["failed"] == 0


def test_a_server_that_answers_the_probe_oddly_is_loaded_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error of another kind tells nothing of the fields."""

    def answer(asked: dict[str, Any]) -> bytes:
        return refused("busy", "500 X") if asked["max_tokens"] == 1 else good(asked)

    with raw_server(answer) as server:
        main(["load", server.url, "--model", "m", *OPEN, "--json"])

    summary = json.loads(capsys.readouterr().out)
    counts = summary["runs"][0]["counts"]
    assert counts["ok"] == counts["sent"] > 3
    assert not any("refuses" in note for note in summary["notes"])


@pytest.mark.parametrize("key", ["sk-1", "a b", None])
def test_other_apis_are_tried_with_the_users_key(key: str | None) -> None:
    """The Messages API has the key in a header of its own."""
    sent: dict[str, Target] = {}

    def send(target: Target) -> RequestRecord:
        sent[target.api] = target
        return failed_record(a_request(), 0, closed_ns=1, kind="http_404", text="no such path")

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    settled(replace(TARGET, headers=headers), send)

    assert set(sent) == {"completions", "chat", "responses", "messages"}
    assert sent["messages"].headers.get("x-api-key") == key
    assert sent["messages"].headers.get("Authorization") == headers.get("Authorization")
    assert "x-api-key" not in sent["chat"].headers
