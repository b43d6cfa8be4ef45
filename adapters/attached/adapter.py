"""A server that somebody else started, as an engine of a sweep: attached to, never touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from harness.adapters.attached.address import api_roots
from harness.adapters.attached.server import Attached, access_of, attach
from harness.adapters.base import (
    AS_IT_IS,
    EngineError,
    EngineSettings,
    ToggleValue,
)

_WHY = "cannot be flipped here: somebody else started this server"


class UrlAdapter:
    """Attaches to a server, which runs as it is: no toggle of it can be flipped."""

    name = "url"
    engine_kind = None  # only the running server reports it

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what is not an address, and a key that is not there."""
        if settings.url is None:
            raise EngineError("the engine url needs the key url, such as http://127.0.0.1:8000")
        api_roots(settings.url)
        access_of(settings.shape, settings.api_key_env)

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

    def start(self, settings: EngineSettings) -> AbstractContextManager[Attached]:
        """Attach to the server; leaving the context leaves it as it is. Raises `EngineError`."""
        return _attached(settings)


@contextmanager
def _attached(settings: EngineSettings) -> Iterator[Attached]:
    server = attach(
        settings.url or "",
        settings.model,
        shape=settings.shape,
        wait_s=settings.start_timeout_s,
        api_key_env=settings.api_key_env,
        model_check=settings.model_check,
        metrics_urls=settings.metrics_urls,
    )
    longest = server.max_model_len
    if longest is not None and longest < settings.max_model_len:
        error = EngineError(
            f"max_model_len {settings.max_model_len} is more than the {longest} tokens that "
            f"{settings.url} takes"
        )
        error.add_note("lower base.max_model_len")
        raise error
    server.until_ready()
    yield server
