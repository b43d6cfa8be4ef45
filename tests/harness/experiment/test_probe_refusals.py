"""Servers that refuse a field of every request, or the API: what is sent instead, and the notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from raw_server import RawServer, good, raw_server, refused, stream
from streams import DONE, delta, event

from harness.cli import main

WORDS = ("--model", "m", "--requests", "3", "--output-tokens", "2")


def loaded(server: RawServer, *words: str, out: Path) -> dict[str, Any]:
    """Load `server` and return the only manifest."""
    main(["load", server.url, *WORDS, *words, "--out", str(out)])
    manifest: dict[str, Any] = json.loads((out / "load/manifest.json").read_text())
    return manifest


def chat(asked: dict[str, Any]) -> bytes:
    tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 1
    return stream(*(delta(content="a") for _ in range(tokens)), delta(finish="length"), DONE)


REFUSALS = {
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead.",
    "temperature": "Unsupported value: 'temperature' does not support 0 with this model.",
    "seed": "Unrecognized request argument supplied: seed",
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "fields",
    [("max_tokens",), ("temperature",), ("max_tokens", "temperature"), ("seed", "temperature")],
)
@pytest.mark.parametrize("load", [(), ("--rate", "20")])
def test_a_field_that_every_request_has_is_renamed_or_left_out(
    fields: tuple[str, ...], named: bool, load: tuple[str, ...], tmp_path: Path, capsys: Any
) -> None:
    """Once, before the load; the notes have it, in print and in the store."""

    def strict(asked: dict[str, Any]) -> bytes:
        bad = next((name for name in fields if name in asked), None)
        if bad is not None:
            return refused(REFUSALS[bad] if named else "invalid request")
        return chat(asked)

    words = WORDS[:2] if load else WORDS
    amount = (*load, "--duration", "0.4 s") if load else ()
    with raw_server(strict) as server:
        out = tmp_path / "kept"
        main(["load", server.url, *words, *amount, "--api", "chat", "--out", str(out)])

    printed = capsys.readouterr().out
    manifest = json.loads((out / "load/manifest.json").read_text())
    assert manifest["status"] == "ok"
    last = server.bodies[-1]
    for name in fields:
        assert name not in last
        assert any(f"the server refuses {name} (" in note for note in manifest["notes"])
        assert f"the server refuses {name} (" in printed
    assert ("max_completion_tokens" in last) == ("max_tokens" in fields)
    always = sorted({"max_tokens", "temperature"} & {*fields})
    assert manifest["facts"].get("refused_fields", []) == always


def test_the_users_own_temperature_is_never_left_out(tmp_path: Path) -> None:
    """It is what the user wants to measure: the refusal is the result."""

    def strict(asked: dict[str, Any]) -> bytes:
        return refused("temperature must be 1") if asked.get("temperature") != 1 else good(asked)

    with raw_server(strict) as server:
        manifest = loaded(server, "--request", "temperature=0.5", out=tmp_path / "kept")

    assert manifest["status"] == "failed"
    assert {body["temperature"] for body in server.bodies} == {0.5}


def test_a_refusal_that_quotes_the_whole_request_names_nothing(tmp_path: Path) -> None:
    """Then each field is left out by itself, and no more than is refused."""

    def strict(asked: dict[str, Any]) -> bytes:
        return refused(f"cannot parse {sorted(asked)}") if "seed" in asked else good(asked)

    with raw_server(strict) as server:
        loaded(server, out=tmp_path / "kept")

    assert "ignore_eos" in server.bodies[-1]
    assert server.bodies[-1]["temperature"] == 0


RESPONSES_EVENTS = (
    {"type": "response.output_text.delta", "delta": "a"},
    {"type": "response.completed", "response": {"status": "completed"}},
)
MESSAGES_EVENTS = (
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
    {"type": "message_stop"},
)


def speaking(*apis: str, status: str) -> Any:
    """A server of these APIs; it refuses all others."""

    def api_of(asked: dict[str, Any]) -> str:
        if "prompt" in asked:
            return "completions"
        if "input" in asked:
            return "responses"
        return "chat" if path_of["last"].endswith("/chat/completions") else "messages"

    path_of = {"last": ""}

    def answer(asked: dict[str, Any]) -> bytes:
        path_of["last"] = server_of["server"].heads[-1][0]
        api = api_of(asked)
        if api not in apis:
            return refused("no such route here", status)
        if api == "responses":
            return stream(*map(event, RESPONSES_EVENTS))
        if api == "messages":
            return stream(*map(event, MESSAGES_EVENTS))
        return chat(asked) if api == "chat" else good(asked)

    server_of: dict[str, RawServer] = {}
    return answer, server_of


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "422 Bad"])
@pytest.mark.parametrize(
    ("apis", "given", "named"),
    [
        (("chat",), "completions", ["chat"]),
        (("completions",), "chat", ["completions"]),
        (("responses", "messages"), "chat", ["responses", "messages"]),
        (("messages",), "completions", ["messages"]),
        ((), "completions", []),
    ],
)
def test_a_server_that_refuses_the_api_has_those_named_that_it_answers(
    apis: tuple[str, ...], given: str, named: list[str], status: str, tmp_path: Path, capsys: Any
) -> None:
    """With the server's own words first."""
    answer, server_of = speaking(*apis, status=status)
    with raw_server(answer) as server:
        server_of["server"] = server
        manifest = loaded(server, "--api", given, out=tmp_path / "kept")

    printed = capsys.readouterr().out
    notes = [note for note in manifest["notes"] if note.startswith("the server refuses http")]
    assert manifest["status"] == "failed"
    assert "no such route here" in printed
    assert len(notes) == bool(named)
    for api in ("completions", "chat", "responses", "messages"):
        assert any(f"--api {api}" in note for note in notes) == (api in named)
    if notes:
        assert (
            f"({status.split(maxsplit=1)[0]}: no such route here) and answers {' and '.join(named)}"
            in (notes[0])
        )


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("completions", "/v1/completions"),
        ("chat", "/v1/chat/completions"),
        ("responses", "/v1/responses"),
        ("messages", "/v1/messages"),
    ],
)
def test_each_api_is_loaded(
    api: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its route, with its own field for the length, and its own header for the key."""
    monkeypatch.setenv("A_KEY", "k-123456789")
    answer, server_of = speaking("completions", "chat", "responses", "messages", status="404 X")
    with raw_server(answer) as server:
        server_of["server"] = server
        manifest = loaded(server, "--api", api, "--api-key-env", "A_KEY", out=tmp_path / "kept")

    posts = [(path, head) for path, head in server.heads if head.get("Content-Length")]
    assert {path for path, _ in posts} == {path}
    assert manifest["status"] == "ok"
    length = "max_output_tokens" if api == "responses" else "max_tokens"
    assert {body[length] for body in server.bodies} == {2}
    heads = [{name.lower(): value for name, value in head.items()} for _, head in posts]
    assert {head["authorization"] for head in heads} == {"Bearer k-123456789"}
    keys = {head.get("x-api-key") for head in heads}
    versions = {head.get("anthropic-version") for head in heads}
    assert keys == ({"k-123456789"} if api == "messages" else {None})
    assert versions == ({"2023-06-01"} if api == "messages" else {None})
