"""A server that somebody else started, as an engine of a sweep: attached to, never touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from harness.adapters.attached.server import Attached, attach, base_url, key_headers
from harness.adapters.base import (
    AS_IT_IS,
    EngineError,
    EngineSettings,
    ServerCounters,
    Target,
    ToggleValue,
)

_WHY = "cannot be flipped here: somebody else started this server"


class UrlEndpoint:
    """A server that somebody else started, as a sweep sees it."""

    def __init__(self, server: Attached) -> None:
        self._server = server
        self.target: Target | None = server.target
        self.engine_version = server.engine_version
        self.engine_kind = server.engine_kind
        self.max_model_len = server.max_model_len

    @property
    def notes(self) -> tuple[str, ...]:
        """Why its counters cannot be compared over the run, where that is so."""
        return self._server.notes

    def effective(self) -> Mapping[str, str]:
        """Return nothing: no toggle value was requested of this server."""
        return self._server.effective()

    def counters(self) -> ServerCounters:
        """Return the totals in its metrics; None for each that is not there."""
        return self._server.counters()

    def reset(self) -> None:
        """Leave its caches as they are: they are not ours."""

    def facts(self) -> Mapping[str, Any]:
        """Return what was found out, with the request fields that it takes by now."""
        fields = frozenset() if self.target is None else self.target.fields
        return {**self._server.facts(), "fields": sorted(fields)}


class UrlAdapter:
    """Attaches to a server, which runs as it is: no toggle of it can be flipped."""

    name = "url"
    engine_kind = None  # only the running server reports it

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what is not an address, and a key that is not there."""
        if settings.url is None:
            raise EngineError("the engine url needs the key url, such as http://127.0.0.1:8000")
        base_url(settings.url)
        key_headers(settings.api_key_env)

    def version_of(self, _: EngineSettings) -> str | None:
        """Return None: only the running server reports it."""
        return None

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return every toggle as it is; `tensor_parallel` is the GPUs of the sweep."""
        gpus = {"tensor_parallel": ToggleValue(str(settings.gpu_count))}
        return {**dict.fromkeys(settings.toggles, AS_IT_IS), **gpus}

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return for every toggle why it is as it is."""
        return dict.fromkeys(settings.toggles, _WHY)

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return where the server is; nothing is started."""
        return ["attach", str(settings.url), settings.model]

    def start(self, settings: EngineSettings) -> AbstractContextManager[UrlEndpoint]:
        """Attach to the server; leaving the context leaves it as it is. Raises `EngineError`."""
        return _attached(settings)


@contextmanager
def _attached(settings: EngineSettings) -> Iterator[UrlEndpoint]:
    server = attach(
        settings.url or "",
        settings.model,
        wait_s=settings.start_timeout_s,
        api_key_env=settings.api_key_env,
    )
    longest = server.max_model_len
    if longest is not None and longest < settings.max_model_len:
        error = EngineError(
            f"max_model_len {settings.max_model_len} is more than the {longest} tokens that "
            f"{settings.url} takes"
        )
        error.add_note("lower base.max_model_len")
        raise error
    yield UrlEndpoint(server)
