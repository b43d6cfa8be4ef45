"""A server whose model is not ready yet is waited for; a wrong name is an error at once."""

from __future__ import annotations

import json
import socket
import time

import pytest
from command_line import harness
from gateway import Gateway, serving

from harness.adapters.attached import attach
from harness.adapters.attached.names import may_be_served
from harness.adapters.base import EngineError

FEW = ("--requests", "3", "--output-tokens", "2", "--json")


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("listed_after_s", [0.0, 0.5])
@pytest.mark.parametrize("rate", [(), ("--rate", "9", "--duration", "1", "--arrivals", "constant")])
def test_no_measured_request_is_sent_before_a_token_came(
    status: int, listed_after_s: float, rate: tuple[str, ...]
) -> None:
    """Neither a gateway in front nor a list of models is the model, and no wait is a latency."""
    gateway = Gateway(not_ready=status, listed_after_s=listed_after_s, ready_after_s=1.5)
    words = (*rate, "--output-tokens", "2", "--json") if rate else FEW
    with serving(gateway):
        ran = harness("load", gateway.url, "--model", "m", "--wait", "20 s", *words)

    (run,) = json.loads(ran.stdout)["runs"]
    assert run["counts"]["failed"] == 0
    assert run["counts"]["ok"] == (9 if rate else 3)
    assert gateway.refused > 0
    assert run["metrics"]["ttft_ms"]["p99"] < 1000


def test_what_failed_is_the_result_where_the_model_never_comes() -> None:
    """The load ends after the wait, with its failures by kind."""
    with serving(Gateway(ready_after_s=1e6)) as gateway:
        ran = harness("load", gateway.url, "--model", "m", "--wait", "1 s", *FEW)

    (run,) = json.loads(ran.stdout)["runs"]
    assert ran.returncode == 1
    assert run["metrics"]["failures"] == {"http_503": 3}


def test_an_open_loop_is_not_sent_to_a_model_that_never_comes() -> None:
    """It would be refused for its whole length."""
    with serving(Gateway(ready_after_s=1e6)) as gateway:
        rate = ("--rate", "5", "--duration", "60 s", "--wait", "1 s")
        ran = harness("load", gateway.url, "--model", "m", *rate)

    assert ran.returncode == 2
    assert "its model answers 503, not ready: 503 model is being loaded" in ran.stderr


def test_a_healthy_server_gets_no_request_but_the_load() -> None:
    """Its own count of requests is that of the load."""
    with serving(Gateway()) as gateway:
        harness("load", gateway.url, "--model", "m", *FEW)

    assert len(gateway.posts) == 3


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("phi3", ("phi3:latest",)),
        ("their/Llama-3", ("llama-3",)),
        ("gpt-x", ("gpt-x-2026-01-01",)),
        ("anything", ("*",)),
        ("alias", ("one", "two")),
    ],
)
def test_a_name_that_is_not_listed_and_answered_is_loaded_with_a_note(
    name: str, listed: tuple[str, ...]
) -> None:
    """One token is requested for it."""
    with serving(Gateway(listed=listed, taken=(name,))) as gateway:
        found = attach(gateway.url, name)

    assert len(gateway.posts) == 1
    assert any("does not list" in note and listed[0] in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "listed", "posts"),
    [
        ("phi4", ("phi3:latest",), 0),
        ("new-model", ("old-model",), 0),
        ("small", ("small:7b",), 1),
        ("alias", ("one", "two"), 1),
    ],
)
def test_another_name_is_an_error_at_once(name: str, listed: tuple[str, ...], posts: int) -> None:
    """A single model of quite another name is not even tried: most engines answer any name."""
    gateway = Gateway(listed=listed, taken=listed)
    begun_s = time.monotonic()
    with serving(gateway), pytest.raises(EngineError) as caught:
        attach(gateway.url, name, wait_s=60)

    assert time.monotonic() - begun_s < 10
    assert f"does not serve '{name}'; it serves {', '.join(sorted(listed))}" in str(caught.value)
    assert len(gateway.posts) == posts


def test_a_name_is_not_checked_where_the_user_says_so() -> None:
    """The note is in the results."""
    with serving(Gateway(listed=("other",))) as gateway:
        ran = harness("load", gateway.url, "--model", "m", "--no-model-check", *FEW)

    summary = json.loads(ran.stdout)
    assert summary["runs"][0]["counts"]["ok"] == 3
    assert any("name was not checked" in note for note in summary["notes"])


def test_names_that_contain_each_other_may_be_one_model() -> None:
    """Owner, tag, case and separators do not count."""
    assert may_be_served("org/Small_Model", ["small-model:latest"])
    assert not may_be_served("", ["small-model"])
    assert not may_be_served("new-model", ["old-model"])


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_a_proxy_that_does_not_answer_is_named_as_the_proxy(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Without its password; the server itself may be well."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        proxy = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv(variable, f"http://me:secret@{proxy}")

    ran = harness("load", "http://192.0.2.7:8000", "--model", "m", "--wait", "0.3 s")

    assert ran.returncode == 2
    assert f"the proxy {proxy} did not answer" in ran.stderr
    assert "secret" not in ran.stderr


@pytest.mark.parametrize("status", [502, 407])
def test_a_proxy_that_refuses_is_named_as_the_proxy(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """It answers in place of the server."""
    gateway = Gateway(not_ready=status, listed_after_s=1e6)
    with serving(gateway):
        monkeypatch.setenv("http_proxy", gateway.url)
        ran = harness("load", "http://192.0.2.7:8000", "--model", "m", "--wait", "0.3 s")

    assert ran.returncode == 2
    assert f"the proxy {gateway.url.removeprefix('http://')}" in ran.stderr


@pytest.mark.parametrize(
    ("version", "longest", "read"),
    [
        (b'{"version": 7}', 10, ("7", 10)),
        (b'{"version": ["1.0"]}', "10", ("unknown", 10)),
        (b'{"version": {"a": 1}}', [1], ("unknown", None)),
        (b'{"version": null}', True, ("unknown", None)),
        (b'{"version": "%s"}' % (b"9" * 5000), 1e400, ("9" * 200, None)),
        (b"[]", 4096.0, ("unknown", 4096)),
    ],
)
def test_a_value_of_another_type_is_as_good_as_none(
    version: bytes, longest: object, read: tuple[str, int | None]
) -> None:
    """What a server reports of itself never ends a run."""
    with serving(Gateway(version=version, entry={"max_model_len": longest})) as gateway:
        found = attach(gateway.url, "m")

    assert (found.engine_version, found.max_model_len) == read
