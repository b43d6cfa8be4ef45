"""What every engine adapter offers: settings in, a running endpoint out. Knows nothing of load."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from harness.adapters.base import EngineSettings, ServerCounters, Target, ToggleValue
from harness.adapters.embedded import InProcessEngine

# What differs between the two is a property with a name, such as `virtual_time`.
Transport = Target | InProcessEngine


class Endpoint(Protocol):
    """A running engine, as the load generator and the evidence see it."""

    @property
    def transport(self) -> Transport:
        """How requests reach the engine; the only thing that decides which client sends them."""
        ...

    @property
    def engine_version(self) -> str:
        """The version that the engine reports."""
        ...

    @property
    def engine_kind(self) -> str:
        """One of real, measured, simulated, stand-in."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know of this engine, as far as it is known by now."""
        ...

    def effective(self) -> Mapping[str, str]:
        """Return the configuration that the engine reports: toggle or base setting → value."""
        ...

    def counters(self) -> ServerCounters:
        """Return the server's running totals as of now."""
        ...

    def reset(self) -> None:
        """Make the caches cold. Raises `EngineError` while requests are in flight."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return what a report shows of this engine: KV blocks, assumptions, versions."""
        ...


class EngineAdapter(Protocol):
    """How to start one serving engine. Knows flags; knows nothing of load or latency."""

    @property
    def name(self) -> str:
        """The word for this engine in sweep files and results."""
        ...

    @property
    def engine_kind(self) -> str | None:
        """One of real, measured, simulated, stand-in; None: only the running engine reports it."""
        ...

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for settings that can never start (unknown model, does not fit).

        Raises `UnsupportedToggleError`, naming the reason, for a toggle value it cannot follow.
        """
        ...

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that `settings` start; None: only the running engine reports it."""
        ...

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values force on others, as `paged_kv: off` ⇒ `prefix_caching: off`."""
        ...

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it has the value in `implied`, whatever was requested."""
        ...

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return what would be started, for the plan: a command line, or a description of it."""
        ...

    def start(self, settings: EngineSettings) -> AbstractContextManager[Endpoint]:
        """Start the engine; leaving the context stops it for certain. Raises `EngineError`."""
        ...
