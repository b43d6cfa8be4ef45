"""The root of an API is the address that was given; /v1 comes after it only where it must."""

from __future__ import annotations

import pytest
from gateway import Gateway, serving

from harness.adapters.attached import attach
from harness.adapters.attached.address import api_roots
from harness.adapters.base import EngineError
from harness.adapters.request_shape import RequestShape


@pytest.mark.parametrize(
    ("given", "roots"),
    [
        ("http://h:8000", ["http://h:8000/v1", "http://h:8000"]),
        ("http://h:8000/", ["http://h:8000/v1", "http://h:8000"]),
        ("http://h/v1", ["http://h/v1"]),
        ("http://h/v1/", ["http://h/v1"]),
        ("http://h/v1/chat/completions", ["http://h/v1"]),
        ("http://h/a/v1/models", ["http://h/a/v1"]),
        ("http://h/chat/completions", ["http://h", "http://h/v1"]),
        ("https://h/v1beta/openai/", ["https://h/v1beta/openai", "https://h/v1beta/openai/v1"]),
        ("https://h/v1/x/compat", ["https://h/v1/x/compat", "https://h/v1/x/compat/v1"]),
        ("https://h/v1-eu/v10", ["https://h/v1-eu/v10", "https://h/v1-eu/v10/v1"]),
        ("http://[::1]:80/completions/v2", ["http://[::1]:80/completions/v2",
                                            "http://[::1]:80/completions/v2/v1"]),
    ],
)  # fmt: skip
def test_a_path_is_taken_as_it_is(given: str, roots: list[str]) -> None:
    """Only a route at its end is left out; nothing is cut in the middle."""
    assert [root.url for root in api_roots(given)] == roots


@pytest.mark.parametrize(
    "given",
    ["http://h/v1?api-version=2", "http://h/v1#top", "http://h/a b", "http://h/é", "http://ü.de/"],
)
def test_what_no_request_can_carry_is_refused(given: str) -> None:
    """In place of a request to some other address."""
    with pytest.raises(EngineError):
        api_roots(given)


@pytest.mark.parametrize(
    ("prefix", "given"),
    [
        ("/v1", ""),
        ("", ""),
        ("", "/chat/completions"),
        ("/v1", "/v1/completions"),
        ("/llm", "/llm/"),
        ("/llm/v1", "/llm"),
        ("/v1/models/x/invocations", "/v1/models/x/invocations"),
        ("/v12/ai", "/v12/ai"),
        ("/v1/proj-1/v1", "/v1/proj-1"),
    ],
)
@pytest.mark.parametrize("listed", [("m",), None])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_requests_go_below_the_root_that_answers(
    prefix: str, given: str, listed: tuple[str, ...] | None, api: str
) -> None:
    """With a list of models as without; the note names the address in use."""
    with serving(Gateway(prefix=prefix, listed=listed)) as gateway:
        found = attach(gateway.url + given, "m", shape=RequestShape(api=api))

    route = {"completions": "/completions", "chat": "/chat/completions"}[api]
    assert found.transport.endpoint == gateway.url + prefix + route
    assert f"requests go to {gateway.url}{prefix}{route}" in found.notes
    assert found.facts()["url"] == found.transport.endpoint


@pytest.mark.parametrize("given", ["/v2", "/v1/other", "/v1-eu"])
def test_an_address_where_no_api_answers_is_an_error_at_once(given: str) -> None:
    """It names every address that was requested, and the server's words."""
    with serving(Gateway()) as gateway, pytest.raises(EngineError) as caught:
        attach(gateway.url + given, "m", wait_s=60)

    assert f"{gateway.url}{given}/completions (404)" in str(caught.value)
    assert f"{gateway.url}{given}/v1/completions (404)" in str(caught.value)
    assert any("no such path" in note for note in caught.value.__notes__)
