"""A server that runs already: what it is and what it takes, as far as its routes report it.

Only GETs are sent from here; `readiness.py` may request a token before the load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.adapters.attached.address import ApiRoot, api_roots
from harness.adapters.attached.readiness import Wanted, found_api, wait_for_token
from harness.adapters.base import EngineError, ServerCounters, Target
from harness.adapters.http_queries import NO_REPLY, Access, HttpReply, query
from harness.adapters.reported_values import version_text, whole
from harness.adapters.request_shape import AS_MADE, RequestShape, tls_context
from harness.adapters.server_metrics import ServerMetrics

# Optional request fields that a kind of server takes, by a prefix of its metrics. A server of no
# known kind is sent what most take; where it replies 400, its own message is shown.
_COMMON = frozenset({"seed", "ignore_eos", "include_usage"})
_FIELDS = {
    "vllm:": _COMMON | {"continuous_usage_stats", "cache_salt", "return_token_ids"},
    "sglang:": _COMMON | {"continuous_usage_stats", "return_token_ids"},
    "trtllm_": frozenset({"seed", "ignore_eos", "include_usage"}),
}
_UNKNOWN_FIELDS = _COMMON | {"continuous_usage_stats"}
# Ids below this exist in the vocabulary of any model worth serving; more needs the tokenizer.
_SAFE_VOCABULARY = 4096
# What is counted, under the engines' names, of one engine the newest version's first.
_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens", "trtllm_prompt_tokens"),
    "cached_prompt_tokens": (
        *("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        *("sglang:cached_tokens", "trtllm_prompt_cached_tokens"),
    ),
    "looked_up_prompt_tokens": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "output_tokens": (
        *("vllm:generation_tokens", "sglang:generation_tokens", "trtllm_generation_tokens"),
    ),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "verify_steps": ("vllm:spec_decode_num_drafts",),
    "preemptions": ("vllm:num_preemptions",),
}
_QUEUED = "vllm:request_queue_time_seconds_sum"  # a total of seconds
_QUERY_S = 10.0


class _Totals:
    """The totals of one scrape after the other, as long as they can be compared.

    A server that restarts in between, or one engine of several behind one port, begins at 0 again;
    another version may count under another name.
    """

    def __init__(self) -> None:
        self.lost: str | None = None  # why the last ones cannot be compared with those before
        self._last: dict[str, float] = {}

    def go_on(self, series: dict[str, float]) -> bool:
        """Take the next scrape; return whether it continues every series of the one before."""
        for name, before in self._last.items():
            if name not in series:
                self.lost = f"the server's counters are not comparable: {name} is no longer there"
            elif series[name] < before:
                self.lost = f"the server restarted during the run: {name} fell"
        self._last = series
        return self.lost is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """An endpoint that somebody else started: its toggles cannot be flipped or proven here."""

    transport: Target
    engine_version: str
    engine_kind: str
    max_model_len: int | None  # None: the server does not report it
    waited_s: float  # for the server to answer
    found_notes: tuple[str, ...] = ()  # what was found out while attaching
    metrics_urls: tuple[str, ...] = ()  # of its replicas, whose counts are added up
    _wait: Callable[[], float] = field(default=lambda: 0.0, repr=False, compare=False)
    _totals: _Totals = field(default_factory=_Totals, repr=False, compare=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know of this server."""
        lost = () if self._totals.lost is None else (self._totals.lost,)
        return (*self.found_notes, *lost)

    def until_ready(self) -> float:
        """Wait for a token, and return the seconds. Raises `EngineError` where none comes."""
        return self._wait()

    def effective(self) -> Mapping[str, str]:
        """Return nothing: no toggle value was requested of this server."""
        return {}

    def counters(self) -> ServerCounters:
        """Return the totals in the server's metrics; None for each that is not there.

        None for all where they do not go on from those that were returned before.
        """
        pages = self._pages()
        series = {
            f"{place}{name}": value
            for place, page in pages.items()
            for names in (*_COUNTERS.values(), (_QUEUED,))
            for name, value in page.series(*names).items()
        }
        if not self._totals.go_on(series):
            return ServerCounters()
        counts = {
            name: _sum(page.count(*of) for page in pages.values()) for name, of in _COUNTERS.items()
        }
        queued_ns = _sum(page.nanoseconds(_QUEUED) for page in pages.values())
        return ServerCounters(**counts, queued_ns=queued_ns)

    def _pages(self) -> dict[str, ServerMetrics]:
        """Return the metrics by a prefix for their names, which tells replicas apart."""
        if not self.metrics_urls:
            return {"": _metrics(self.transport.url, self.transport.access)}
        return {f"{url}: ": _replica_metrics(url, self.transport) for url in self.metrics_urls}

    def reset(self) -> None:
        """Leave the server's cache as it is: it is not ours."""

    def facts(self) -> Mapping[str, Any]:
        """Return what was found out."""
        return {
            "url": self.transport.endpoint,
            "waited_s": self.waited_s,
            "cache_emptied": False,
            "assumptions": [],
        }


def attach(  # noqa: PLR0913  how to reach it, and how long to wait
    url: str,
    model: str,
    *,
    shape: RequestShape = AS_MADE,
    vocabulary: int | None = None,
    wait_s: float = 30.0,
    token_wait_s: float | None = None,
    api_key_env: str | None = None,
    model_check: bool = True,
    metrics_urls: tuple[str, ...] = (),
    waiting: Callable[[str], None] = lambda _: None,
) -> Attached:
    """Return the server at `url` once it answers, at the latest after `wait_s`.

    `shape` is what the user sets of every request. `vocabulary` None sends ids that every model
    has. `api_key_env` names the variable that has the key, which goes into the headers and nowhere
    else. `waiting` is called once, with what is waited for. `token_wait_s` (None: `wait_s`) is how
    long `until_ready` waits later. `metrics_urls` are the replicas behind `url` that count.
    Raises `EngineError` for an address that is none, a key that is not there or not taken, a server
    that does not come, and one that serves other models.
    """
    access = access_of(shape, api_key_env)
    wanted = Wanted(
        url=url,
        model=model,
        shape=shape,
        access=access,
        api_key_env=api_key_env,
        wait_s=wait_s,
        model_check=model_check,
        waiting=waiting,
    )
    found = found_api(wanted)
    version, simulated = _version(found.root.server, access)
    target = _target(wanted, found.root, vocabulary, simulated=simulated)
    for replica in metrics_urls:
        _check_replica(replica, target)
    patience = replace(wanted, wait_s=wait_s if token_wait_s is None else token_wait_s)
    return Attached(
        transport=target,
        engine_version=version,
        engine_kind="simulated" if simulated else "real",
        max_model_len=whole(found.models.get(model, {}).get("max_model_len")),
        waited_s=found.waited_s,
        metrics_urls=metrics_urls,
        found_notes=(f"requests go to {target.endpoint}", *found.notes),
        _wait=lambda: wait_for_token(patience, found.root),
    )


def _target(wanted: Wanted, root: ApiRoot, vocabulary: int | None, *, simulated: bool) -> Target:
    shape, access = wanted.shape, wanted.access
    fields = shape.fields(_fields(root.server, access))
    return Target(
        url=root.server,
        api_path=root.path,
        model=wanted.model,
        api=shape.api,
        # The embedded engine has one cache for all, whatever the salt, and refuses one.
        fields=fields - ({"cache_salt"} if simulated else frozenset()),
        headers=access.headers,
        vocabulary=(vocabulary or _SAFE_VOCABULARY) if shape.api == "completions" else None,
        body=shape.body,
        lora=shape.lora,
        verify_tls=shape.verify_tls,
    )


def key_in(variable: str) -> str:
    """Return the API key in a variable.

    Raises `EngineError` where it is not set, or has characters that no header can carry.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        error = EngineError(f"the variable {variable} is not set, and should hold an API key")
        error.add_note(f"export {variable}=… first; the key itself stands in no file")
        raise error
    if not key.isascii() or not key.isprintable():
        raise EngineError(f"the variable {variable} holds signs that no API key has")
    return key


def access_of(shape: RequestShape, api_key_env: str | None) -> Access:
    """Return what every request to a server needs: headers, its key, trust over TLS.

    Raises `EngineError`.
    """
    key = None if api_key_env is None else key_in(api_key_env)
    if key is not None and "authorization" in {name.lower() for name in shape.headers}:
        error = EngineError(f"Authorization is set by a header and by the key in {api_key_env}")
        error.add_note("leave one of them out")
        raise error
    try:
        tls_context(shape.verify_tls)
    except ValueError as fault:
        raise EngineError(f"verify_tls: {fault}") from fault
    return Access(headers=shape.all_headers(key), verify_tls=shape.verify_tls)


def _get(base: str, path: str, access: Access) -> HttpReply:
    return query(base, path, timeout_s=_QUERY_S, access=access)


def _version(base: str, access: Access) -> tuple[str, bool]:
    """Return the version that /version reports, and whether the engine is simulated."""
    try:
        document = _get(base, "/version", access).json()
    except NO_REPLY:
        document = None
    if not isinstance(document, dict):
        return "unknown", False
    version = version_text(document.get("version"))
    return version or "unknown", version is not None and document.get("kind") == "simulated"


def _fields(base: str, access: Access) -> frozenset[str]:
    metrics = _metrics(base, access)
    known = (fields for prefix, fields in _FIELDS.items() if metrics.has(prefix))
    return next(known, _UNKNOWN_FIELDS)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one is not counted."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _replica_metrics(url: str, target: Target) -> ServerMetrics:
    """Return the metrics of one replica; none where it has none.

    `url` is its address, or that of its page. The server's key is not sent there.
    """
    base = url.rstrip("/").removesuffix("/metrics").removesuffix("/prometheus")
    return _metrics(base, Access(verify_tls=target.verify_tls))


def _check_replica(url: str, target: Target) -> None:
    """Raise `EngineError` where an address has no metrics of a known engine."""
    api_roots(url)
    if any(_replica_metrics(url, target).has(prefix) for prefix in _FIELDS):
        return
    error = EngineError(f"metrics_urls: {url} has no metrics of vLLM, SGLang or TensorRT-LLM")
    error.add_note("name the address of one replica, such as http://10.0.0.7:8000")
    raise error


def _metrics(base: str, access: Access) -> ServerMetrics:
    """Return the series on a server's page of metrics; none where it has no such page.

    TensorRT-LLM's `/metrics` is another page, which returns each record once: its page of series is
    read first.
    """
    for path in ("/prometheus/metrics", "/metrics"):
        with contextlib.suppress(*NO_REPLY):
            reply = _get(base, path, access)
            page = ServerMetrics(reply.text if reply.status == 200 else "")
            if any(page.has(prefix) for prefix in _FIELDS):  # a proxy may answer any path
                return page
    return ServerMetrics("")
