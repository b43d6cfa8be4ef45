"""What a request looks like: fields that the server takes, prompts that share what they should."""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import a_request

from harness.adapters.base import Target
from harness.client.http.descriptors import allow_open_files
from harness.client.http.request_body import (
    RequestOptions,
    body_bytes,
    endpoint,
    head_bytes,
    request_headers,
)
from harness.workloads.base import Segment
from harness.workloads.prompts.token_ids import draw_token_ids
from harness.workloads.prompts.words import WORDS, prompt_text

URL = "http://127.0.0.1:8000"
ALL = frozenset(
    {"seed", "ignore_eos", "include_usage", "continuous_usage_stats", "cache_salt", "temperature"}
)


def body(target: Target, asking: RequestOptions | None = None) -> dict[str, Any]:
    """The body of a request as the server reads it."""
    value: dict[str, Any] = json.loads(body_bytes(target, asking or RequestOptions(), a_request()))
    return value


def test_only_what_every_server_takes_is_sent_by_default() -> None:
    """Model, prompt, length, greedy, streamed; nothing that a server might refuse."""
    assert body(Target(url=URL, model="m")) == {
        "model": "m",
        "prompt": prompt_text(a_request().prompt),
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
    }


def test_fields_that_a_target_lists_are_sent_too() -> None:
    """Each under its own name; the usage options together."""
    sent = body(Target(url=URL, model="m", fields=ALL), RequestOptions(seed=7, cache_salt="s"))

    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (sent["seed"], sent["ignore_eos"], sent["cache_salt"]) == (7, True, "s")


def test_no_salt_is_sent_where_there_is_none() -> None:
    """A field that a server takes is not sent empty."""
    assert "cache_salt" not in body(Target(url=URL, model="m", fields=ALL))


def test_a_vocabulary_makes_prompts_of_token_ids() -> None:
    """The ids are those that the workload defines; a chat is text all the same."""
    target = Target(url=URL, model="m", vocabulary=32_000)
    ids = draw_token_ids(a_request().prompt, 32_000).tolist()

    assert body(target)["prompt"] == ids
    chat = body(Target(url=URL, model="m", api="chat", vocabulary=32_000))
    assert chat["messages"] == [{"role": "user", "content": prompt_text(a_request().prompt)}]
    assert "prompt" not in chat


def test_a_head_says_where_and_how_much() -> None:
    """Path under the URL's own, host with its port, and headers of the target over the own ones."""
    target = Target(
        url="http://[::1]:81/base/",
        model="m",
        api="chat",
        headers={"Authorization": "Bearer k", "user-agent": "x"},
    )

    lines = head_bytes(target, 12).decode().split("\r\n")

    assert lines[0] == "POST /base/v1/chat/completions HTTP/1.1"
    assert {"Host: [::1]:81", "Content-Length: 12", "Authorization: Bearer k"} <= set(lines)
    assert [line for line in lines if line.lower().startswith("user-agent")] == ["user-agent: x"]
    assert lines[-2:] == ["", ""]


@pytest.mark.parametrize("header", [{"X": "a\r\nY: b"}, {"X\n": "a"}])
def test_a_header_cannot_break_out_of_its_line(header: dict[str, str]) -> None:
    """A key with a line break in it would be another header."""
    with pytest.raises(ValueError, match="line break"):
        request_headers(Target(url=URL, model="m", headers=header))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", ""])
def test_a_url_needs_a_scheme_and_a_host(url: str) -> None:
    """What is missing is shown beside what is needed."""
    with pytest.raises(ValueError, match=r"a URL such as http://127\.0\.0\.1:8000 is needed"):
        endpoint(Target(url=url, model="m"))


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_no_request_keeps_is_refused(timeout_s: float) -> None:
    """None is how to set no limit."""
    with pytest.raises(ValueError, match="timeout_s"):
        RequestOptions(timeout_s=timeout_s)


segments = st.builds(
    Segment, st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=60)
)


@given(segments, segments, segments)
def test_texts_share_what_their_segments_share(one: Segment, two: Segment, other: Segment) -> None:
    """A prompt has a word a token, and the same text begins with the same words everywhere."""
    both, longer = prompt_text((one, two)), prompt_text((Segment(one.text, one.tokens + 9), other))

    assert len(both.split()) == one.tokens + two.tokens
    assert longer.split()[: one.tokens] == both.split()[: one.tokens]
    assert both.split()[one.tokens :] == prompt_text((two,)).split()


def test_unrelated_texts_do_not_begin_alike() -> None:
    """Of a thousand texts no two share their first four words."""
    begins = {prompt_text((Segment(text, 4),)) for text in range(1000)}

    assert len(begins) == 1000


def test_words_are_single_words_and_differ() -> None:
    """One word, one token: lower case, no blanks, none twice."""
    assert len(set(WORDS)) == len(WORDS) > 500
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    """The soft limit rises to what is wanted, or to the hard one; it never falls."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

        assert allow_open_files(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        assert allow_open_files(200) == 300
        if hard != resource.RLIM_INFINITY:
            assert allow_open_files(hard + 1) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
