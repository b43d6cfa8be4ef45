"""What the client of a run measured of itself, as its manifest holds it."""

from __future__ import annotations

from pydantic import ConfigDict

from harness.results.store.manifest_part import ManifestPart, Number


class LoopLagFacts(ManifestPart):
    """How late the event loop of a client process woke, in ns; `n` readings."""

    p50: Number | None = None
    p99: Number | None = None
    max: Number | None = None
    n: int | None = None


class WorkerFacts(ManifestPart):
    """What one client process measured of itself."""

    priority: str | None = None
    cpu_s: float | None = None
    wall_s: float | None = None
    requests: int | None = None
    loop_lag_ns: LoopLagFacts | None = None
    read_on_the_clock: int | None = None
    replaced_connections: int | None = None
    recorded_turns: int | None = None


class OpenFiles(ManifestPart):
    """The most files that a client process had open, and how many it may have."""

    limit: int | None = None
    most: int | None = None


class LocalPorts(ManifestPart):
    """The ports that connections took, and how many there are to one address."""

    available: int | None = None
    used: int | None = None


class CalibrationFacts(ManifestPart):
    """The calibration of the client on this machine; its file has more than is read here."""

    model_config = ConfigDict(extra="allow")

    highest_tokens_per_s: float | None = None


class ClientFacts(ManifestPart):
    """What a run's client measured of itself: the facts behind its certificate."""

    kind: str | None = None
    workers: tuple[WorkerFacts, ...] = ()
    wall_clock_step_ns: Number | None = None
    open_files: OpenFiles | None = None
    ports: LocalPorts | None = None
    calibration: CalibrationFacts | None = None
