"""The endpoint of a started engine, as far as all engines share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from harness.adapters.process.programs import env_for_report
from harness.adapters.process.server import Server, ServerStart, running_server
from harness.adapters.process.shown_texts import shown_words
from harness.adapters.reported_values import version_text, word

_Endpoint = TypeVar("_Endpoint")


class StartedEndpoint:
    """A running engine that was started here: its version, and how it was started.

    An engine's own endpoint adds what it reports and counts, and how it is reset.
    """

    variables: ClassVar[tuple[str, ...]] = ()  # prefixes of those that a report shows
    notes: tuple[str, ...] = ()

    def __init__(self, server: Server, about: Any, version: str | None = None) -> None:
        """Take version and kind from the document `about`; `version` is used where it has none."""
        reported = about if isinstance(about, Mapping) else {}
        self._server = server
        self._settings = server.start.settings
        self.engine_version = version_text(reported.get("version")) or version or "unknown"
        self.engine_kind = word(reported.get("engine_kind")) or "real"
        self.transport = server.target

    def facts(self) -> Mapping[str, Any]:
        """Return how exactly this server was started."""
        return {
            "command": shown_words(self._server.command),
            "environment": env_for_report(self._server.env, self.variables),
            "startup_s": round(self._server.startup_s, 3),
            "log": self._settings.log_path and self._settings.log_path.name,
            "assumptions": [],
        }


@contextmanager
def running_endpoint(
    start: ServerStart, endpoint: Callable[[Server], _Endpoint]
) -> Iterator[_Endpoint]:
    """Start a server and yield its endpoint; on leaving, nothing of it is left.

    Raises `EngineError`.
    """
    with running_server(start) as server:
        yield endpoint(server)
